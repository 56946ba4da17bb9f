// A checkpoint: what it says of an object, and the records that its storages lie in.
//
//   Archive ─┬─ ZipArchive           torch.save since 1.6, TorchScript
//            ├─ LegacyArchive        torch.save before, and since with _use_new_zipfile_serialization=False
//            ├─ SafetensorsArchive   .safetensors: a dict of tensors, and no pickle
//            └─ Hdf5Archive          .h5: either of both
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "checkpoint/content.h"
#include "pickle/machine.h"

namespace zerocopy {

// What a pickle says about one of its storages: enough to find it and to check its record.
struct Wanted {
  std::string_view key;
  const DType* dtype;
  std::uint64_t nbytes;
};

class Archive {
 public:
  // Tells the container by its first bytes. Throws FormatError or UnsupportedError.
  static std::unique_ptr<Archive> open(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                       Mode mode);

  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;
  virtual ~Archive() = default;

  const Content& content() const noexcept { return content_; }

  virtual const char* container() const noexcept = 0;
  virtual bool is_torchscript() const { return false; }

  // Read by the safe machine, where it is a pickle; with `take_modules` as PickleForm has it. Throws what
  // read_pickle throws.
  virtual Document document(bool take_modules = false) const = 0;

  // Whether it is a pickle that says it: that names globals, and is a program to whoever trusts it.
  virtual bool is_pickled() const { return true; }
  virtual Region pickle() const = 0;

  // The record of each storage: it is there and has its size. A legacy file can only tell when it is
  // asked for all storages at once. Throws FormatError.
  virtual std::vector<Record> records(std::span<const Wanted> storages) = 0;

  // Where the checkpoint ends in its source, once its records are known.
  virtual std::uint64_t end() const noexcept = 0;

 protected:
  explicit Archive(Content content) : content_(std::move(content)) {}

  Content content_;
};

// The storages that a document needs records of, by their index.
std::vector<Wanted> wanted_by(const Document& document);

}  // namespace zerocopy
