// The records of many storages, read at once: small neighbours come together, large ones in parts, all by
// several threads.
//
//   file      │ 0 │1│  2  │        3        │ 4 │5│      records, with headers between them
//   memory    ├─────────────┤├───────────────┤├─────┤      neighbours up to a size share a piece; each slices
//   it
//
// So no latency is waited for record by record, and memory still goes back piece by piece with the tensors in
// it.
#pragma once

#include <span>
#include <vector>

#include "io/source.h"

namespace zerocopy {

struct Wish {
  Extent extent;
  std::uint64_t alignment = 1;  // of its bytes in memory
};

// The bytes of each wish, in private memory that no two of them share. Throws FormatError for one that leaves
// the source, and what reading throws.
std::vector<Region> read_batch(const Source& source, std::span<const Wish> wishes);

}  // namespace zerocopy
