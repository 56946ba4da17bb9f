// The end of a zip archive, which locates the central directory and counts its entries.
#pragma once

#include "io/source.h"

namespace zerocopy {

struct ZipEnd {
  Extent directory;           // checked to lie in the source
  std::uint64_t entries = 0;  // checked against the directory's size: 46 bytes each at least
  std::uint64_t behind = 0;   // bytes after the archive, which nothing reads
};

// Takes the end record that torch's reader takes. Bytes may follow it. Throws FormatError if the end
// record is missing or ambiguous, or if the records before it are not adjacent.
ZipEnd find_zip_end(const Source& source);

// Returns whether a reader that searches from the end, such as a scanner, would find an archive in a
// file whose checkpoint ends before `begin`.
bool ends_like_a_zip(const Source& source, std::uint64_t begin);

}  // namespace zerocopy
