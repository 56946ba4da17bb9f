// Persistent ids: ('storage', torch.FloatStorage, '0', 'cpu', 1024) becomes one Storage a key.
#pragma once

#include <string>
#include <vector>

#include "memory/name_table.h"
#include "pickle/document.h"

namespace zerocopy {

class StorageTable {
 public:
  // The storage that a persistent id names. Throws FormatError unless the id has the form above,
  // and unless every use of a key agrees on type, location and number of elements.
  Storage& load(Document& document, const Value& id, std::uint64_t offset);

 private:
  NameTable<NameHash> by_key_;  // to indices of `made_`
  std::vector<Storage*> made_;
};

}  // namespace zerocopy
