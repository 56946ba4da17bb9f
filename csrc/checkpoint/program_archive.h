// The weights and constants of programs: a .pt2 of torch.export, or a package of AOTInductor.
//
//   <root>/archive_format          "pt2"
//   <root>/models/<model>.json     the graph, which only torch.export reads
//   <root>/data/weights/           weight_<n>: a storage, raw; or a file of torch.save with one tensor
//                                  <model>_weights_config.json lists them by name (container/payloads.h)
//   <root>/data/constants/         tensor_<n>: a constant, stored in either of these two ways;
//                                  a record with another name is a pickled object
//   <root>/data/aotinductor/<model>/
//                                  libraries; weights_config.json lists views of weights
//
// The document is a dict from names to tensors. If there are several programs, it is a dict of such
// dicts. The key of a storage is the name of its record. If the record is a file of torch.save, the
// key of the storage in that file follows: "data/weights/weight_0/1".
#pragma once

#include <map>

#include "checkpoint/zip_archive.h"
#include "container/payloads.h"

namespace zerocopy {

class ProgramArchive final : public ZipArchive {
 public:
  static bool recognises(const Zip& zip) { return zip.contains("archive_format"); }

  // Reads what the archive lists. Throws UnsupportedError for archives of other versions.
  ProgramArchive(Content content, Zip zip);

  const char* container() const noexcept override { return "pt2"; }
  bool is_torchscript() const override { return false; }
  bool is_pickled() const override { return false; }
  Region pickle() const override;
  void require_undamaged_pickle() const override {}
  Document document(bool stubs) const override;
  std::vector<Record> records(std::span<const StorageRequest> storages) override;
  StorageRecords found_records(std::span<const StorageRequest> storages) override;

 private:
  // A file of torch.save in a record.
  struct Inner {
    std::uint64_t begin;  // in this file
    std::unique_ptr<ZipArchive> archive;
    Extent pickle;  // the extent of its pickle in text_
  };
  struct Listed {
    std::string record;
    Payload payload;
  };
  class Reader;

  void require_version() const;
  std::string read_list(std::string_view name);
  void add(const std::string& model, std::string_view folder, std::vector<Payload> payloads);
  std::string open_inner(const std::string& name, std::uint64_t text_size);

  std::map<std::string, std::vector<Listed>> models_;
  std::map<std::string, Inner, std::less<>> inner_;  // by the name of the record
  Region text_;                                      // the lists and the pickles
};

}  // namespace zerocopy
