// A torch.save zip archive: its records, and the Region of each storage.
//
//   <root>/data.pkl        the pickle
//   <root>/data/<key>      one storage each, raw
//   <root>/version         "3\n"; torch reads 1 to 10
//   <root>/byteorder       "little" or "big"; absent before torch 2.1, which means little
//   <root>/constants.pkl   only in TorchScript archives, which are programs and not ours
//
// Written by torch/csrc/serialization and caffe2/serialize/inline_container.cc.
#pragma once

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "container/zip.h"
#include "memory/mapping.h"
#include "pickle/document.h"

namespace zerocopy {

// How a storage's bytes get into memory, and why not by mapping.
struct Placement {
  enum class How : std::uint8_t { mapped, copied, inflated };
  How how;
  const char* why;
};

class Archive {
 public:
  // `mapping` is the whole of `source` in memory, or empty: then every storage is read.
  Archive(std::shared_ptr<const Source> source, Region mapping, Mode mode);
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  std::optional<std::size_t> find(std::string_view name) const { return zip_.find(name); }
  std::string_view name(std::size_t record) const noexcept { return zip_.name(record); }
  std::size_t size() const noexcept { return zip_.size(); }

  // Every record, its local header read and checked, so that no byte of the file is left
  // unexplained. Where there are many a thread of its own reads them meanwhile, and the first call
  // waits for it. Throws what Zip::record throws.
  const std::vector<Record>& records() const {
    const std::vector<Record>* checked = checked_.load(std::memory_order_acquire);
    return checked != nullptr ? *checked : wait_for_records();
  }

  bool big_endian() const noexcept { return big_endian_; }
  bool is_torchscript() const { return find("constants.pkl").has_value(); }

  // The bytes of a record, inflated where need be, in fresh memory.
  Region read(std::size_t record) const { return read(zip_.record(record)); }

  // The record of storage `key`. Throws FormatError unless it is there and has `nbytes` bytes.
  std::size_t storage_record(std::string_view key, std::uint64_t nbytes) const;

  Placement placement(std::size_t record, const DType& dtype) const;

  // What a storage is built over: a slice of the mapping, or fresh memory.
  Region storage(std::size_t record, const DType& dtype) const;

  // data.pkl.
  Region pickle() const;

 private:
  const std::vector<Record>& wait_for_records() const;
  Region read(const Record& record) const;
  void check_version() const;
  void read_byteorder();
  std::string read_text(std::size_t record) const;

  std::shared_ptr<const Source> source_;
  Region mapping_;
  Mode mode_;
  Zip zip_;
  std::shared_future<std::vector<Record>> records_;  // its thread reads zip_: an Archive stays put
  mutable std::atomic<const std::vector<Record>*> checked_{nullptr};  // what records_ holds, once it does
  bool big_endian_ = false;
};

}  // namespace zerocopy
