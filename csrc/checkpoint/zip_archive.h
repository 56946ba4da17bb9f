// A torch.save zip archive: its records, and the record of each storage.
//
//   <root>/data.pkl        the pickle
//   <root>/data/<key>      one storage each, raw
//   <root>/version         "3\n"; torch reads 1 to 10
//   <root>/byteorder       "little" or "big"; absent before torch 2.1: then it is little-endian
//   <root>/constants.pkl   only in TorchScript archives, which are programs: torch runs them
//   <root>/constants/<key> storages of that pickle, with keys independent of those of data.pkl
//   <root>/code/...        the source of the program
//
// Written by torch/csrc/serialization and caffe2/serialize/inline_container.cc.
#pragma once

#include <future>
#include <mutex>
#include <optional>
#include <string>

#include "checkpoint/archive.h"
#include "container/zip.h"

namespace zerocopy {

class ZipArchive : public Archive {
 public:
  // Reads the version and the byte order.
  explicit ZipArchive(const Content& content) : ZipArchive(content, Zip(content.source())) {}
  ZipArchive(Content content, Zip directory);

  const char* container() const noexcept override { return is_torchscript() ? "torchscript" : "zip"; }
  bool is_torchscript() const override { return zip_.contains("constants.pkl"); }
  Region pickle() const override;
  void require_undamaged_pickle() const override;
  Document document(bool stubs) const override;
  std::vector<Record> records(std::span<const StorageRequest> storages) override {
    return records_in("data/", storages);
  }
  StorageRecords found_records(std::span<const StorageRequest> storages) override {
    return found_in("data/", storages);
  }
  void begin_records() const override;
  std::uint64_t end() const noexcept override { return content_.source()->size(); }
  std::uint64_t behind() const noexcept override { return zip_.behind(); }

  // Returns every record, with its local header read and checked, so every byte of the file is
  // accounted for. If there are many records, begin_records() has started a thread that reads the
  // headers, and this call waits for it. Throws what Zip::record throws.
  const std::vector<Record>& all_records() const;

  // For archives with more than one pickle. records_in() returns the checked records of storages in
  // a folder. read() returns a record's content, and refuses a record that inflates to far more than
  // its stored bytes. Both throw FormatError.
  const Zip& directory() const noexcept { return zip_; }
  std::vector<Record> records_in(std::string_view folder, std::span<const StorageRequest> storages) const;
  Region read(std::size_t record) const;

 protected:
  // Tag for subclasses whose archive torch.save did not write. The constructor with this tag reads
  // neither the version nor the byte order.
  struct OfOther {};
  ZipArchive(OfOther /*tag*/, Content content, Zip directory)
      : Archive(std::move(content)), zip_(std::move(directory)) {}

  StorageRecords found_in(std::string_view folder, std::span<const StorageRequest> storages) const;
  bool read_byteorder() const;
  std::string read_text(std::size_t record) const;

 private:
  std::optional<std::size_t> find(std::string_view name) const { return zip_.find(name); }
  bool is_program() const;
  std::size_t pickle_record() const;
  std::size_t find_storage(std::string_view folder, const StorageRequest& storage) const;
  std::vector<std::size_t> find_storages(std::string_view folder,
                                         std::span<const StorageRequest> storages) const;
  void check_version() const;

  Zip zip_;
  // Its thread reads zip_, so an Archive never moves.
  mutable std::once_flag begun_;
  mutable std::shared_future<std::vector<Record>> records_;
};

}  // namespace zerocopy
