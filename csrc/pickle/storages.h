// Persistent ids: ('storage', torch.FloatStorage, '0', 'cpu', 1024) becomes one Storage a key.
//
// Legacy files add a sixth item, None or (view key, offset, size) in elements: the storage meant is
// then that part of the one named by the first five.
#pragma once

#include <string>
#include <vector>

#include "pickle/document.h"
#include "text/name_table.h"

namespace zerocopy {

// TorchScript's pickler has a class for each of torch's dtypes, torch.save only for the older ones.
enum class PersistentId : std::uint8_t { storage, storage_with_view, storage_of_script };

class StorageTable {
 public:
  explicit StorageTable(PersistentId form) noexcept : form_(form) {}

  bool of_script() const noexcept { return form_ == PersistentId::storage_of_script; }

  // The storage that a persistent id names. Throws FormatError unless the id has the form above,
  // and unless every use of a key agrees on type, location and number of elements. Empty storages
  // may differ in type: torch gives all those without memory one key.
  Storage& load(Document& document, const Value& id, std::uint64_t offset);

 private:
  const DType& dtype_of(const Value& type, std::uint64_t offset) const;
  Storage& view(Document& document, Storage& root, const Value& metadata, std::uint64_t offset);
  Storage& by_key(Document& document, const Storage& wanted, std::uint64_t offset);
  static Storage& add(Document& document, const Storage& wanted);

  PersistentId form_;
  NameTable<NameHash> by_key_;  // to indices of `made_`
  std::vector<Storage*> made_;
};

// ('module', class, source file, source): the class, or null if it is another id.
Global* class_of_module(const Value& id);

}  // namespace zerocopy
