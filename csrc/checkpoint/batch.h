// Reads the records of many storages at once: small neighbours together, large records in pieces,
// with several threads.
//
//   file      │ 0 │1│  2  │        3        │ 4 │5│      records, with headers between them
//   memory    ├─────────────┤├───────────────┤├─────┤      small neighbours share one allocation
//
// So records do not wait for each other's latency, and memory is still freed in pieces with the
// tensors.
#pragma once

#include <span>
#include <vector>

#include "io/source.h"

namespace zerocopy {

struct RecordRead {
  Extent extent;
  std::uint64_t alignment = 1;  // required for the bytes in memory
};

// Returns the bytes of each record, in private memory without overlaps. Throws FormatError for an
// extent that exceeds the source, and the source's errors.
std::vector<Region> read_batch(const Source& source, std::span<const RecordRead> record_reads);

}  // namespace zerocopy
