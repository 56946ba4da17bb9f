// A checkpoint: its pickled object, and the records of its storages.
//
//   Archive ─┬─ ZipArchive           torch.save since 1.6, TorchScript
//            │   └─ ProgramArchive   .pt2 of torch.export and AOTInductor
//            ├─ LegacyArchive        torch.save before 1.6, or with _use_new_zipfile_serialization=False
//            ├─ SafetensorsArchive   .safetensors: a dict of tensors, without a pickle
//            └─ Hdf5Archive          .h5: with or without a pickle
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/content.h"
#include "checkpoint/storage_records.h"
#include "memory/budget.h"
#include "pickle/machine.h"

namespace zerocopy {

// A storage as the pickle describes it, to find its record and check the record's size.
struct StorageRequest {
  std::string_view key;
  const DType* dtype;
  std::uint64_t nbytes;
};

class Archive {
 public:
  // Detects the container by its first bytes. `fixed_budget` is that of Document. Throws FormatError
  // or UnsupportedError.
  static std::unique_ptr<Archive> open(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                       Mode mode, std::uint64_t fixed_budget = Budget::kFixed);

  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;
  virtual ~Archive() = default;

  const Content& content() const noexcept { return content_; }

  virtual const char* container() const noexcept = 0;
  virtual bool is_torchscript() const { return false; }

  // Reads the document, with the safe machine if the archive has a pickle. `stubs` is that
  // of PickleForm. Throws what read_pickle throws.
  virtual Document document(bool stubs = false) const = 0;

  // Returns whether the archive has a pickle, which names globals and could run code in torch.load.
  virtual bool is_pickled() const { return true; }
  virtual Region pickle() const = 0;

  // Throws FormatError if the pickle is not what was written, as far as the container can tell.
  virtual void require_undamaged_pickle() const {}

  // Returns the record of each storage, after checking that the record exists and has the right
  // size. A legacy file can answer only for all storages at once. Throws FormatError.
  virtual std::vector<Record> records(std::span<const StorageRequest> storages) = 0;

  // Like records(), but where the container allows it, this only finds the record of a storage by
  // its name and size, and checks it no further. StorageRecords::at() checks the rest. The result
  // refers to this archive.
  virtual StorageRecords found_records(std::span<const StorageRequest> storages) {
    return StorageRecords(records(storages));
  }

  // Starts to prepare what records() returns, in parallel with document().
  virtual void begin_records() const {}

  // Lists the contents of the file that the document leaves out, each with the reason.
  struct LeftOut {
    std::string name;
    std::string why;
  };
  virtual std::span<const LeftOut> left_out() const noexcept { return {}; }

  // Returns the end of the checkpoint in its source. Call this after records().
  virtual std::uint64_t end() const noexcept = 0;

  // Returns the number of bytes after the checkpoint, which nothing reads. Call this after records().
  virtual std::uint64_t behind() const noexcept { return content_.source()->size() - end(); }

 protected:
  explicit Archive(Content content) : content_(std::move(content)) {}

  Content content_;
};

// Returns the requests for a document's storages, by their index.
std::vector<StorageRequest> storage_requests(const Document& document);

// A document, and the records of its storages by their index.
struct ParsedCheckpoint {
  Document document;
  std::vector<Record> records;
};

// Reads both, and checks every record. `stubs` is that of document().
ParsedCheckpoint read_checkpoint(Archive& archive, bool stubs = false);

// Like read_checkpoint(), for callers that read no storage. If the source is on another machine,
// the offsets of records are not determined.
ParsedCheckpoint list_checkpoint(Archive& archive, bool stubs);

}  // namespace zerocopy
