// Persistent ids: ('storage', torch.FloatStorage, '0', 'cpu', 1024) names one Storage per key.
//
// Legacy files add a sixth item, None or (view key, offset, size) in elements. With it, the id
// names that part of the storage.
#pragma once

#include <string>
#include <vector>

#include "pickle/document.h"
#include "text/name_table.h"

namespace zerocopy {

// TorchScript's pickler has a storage class for every dtype, torch.save only for the older dtypes.
enum class PersistentId : std::uint8_t { storage, storage_with_view, storage_of_script };

class StorageTable {
 public:
  // `folder` comes before the keys that the document gets.
  StorageTable(PersistentId form, std::string_view folder) : form_(form), folder_(folder) {}

  bool of_script() const noexcept { return form_ == PersistentId::storage_of_script; }

  // Returns the storage that a persistent id names. Throws FormatError unless the id has the form
  // above and all uses of a key agree on type, location and number of elements. Empty storages may
  // differ in type: torch gives them all one key.
  Storage& load(Document& document, const Value& id, std::uint64_t offset);

 private:
  const DType& dtype_of(const Value& type, std::uint64_t offset) const;
  Storage& view(Document& document, Storage& root, const Value& metadata, std::uint64_t offset);
  Storage& by_key(Document& document, const Storage& wanted, std::uint64_t offset);
  Storage& add(Document& document, const Storage& wanted) const;
  std::string_view key_in_document(Document& document, std::string_view key) const;

  PersistentId form_;
  std::string folder_;
  NameTable<NameHash> by_key_;  // to indices of `made_`
  std::vector<Storage*> made_;
};

// Matches ('module', class, source file, source). Returns the class, or null for another id.
Global* class_of_module(const Value& id);

}  // namespace zerocopy
