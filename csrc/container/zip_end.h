// The end of a zip archive, which locates the central directory and counts its entries.
#pragma once

#include "io/source.h"

namespace zerocopy {

struct ZipEnd {
  Extent directory;           // checked to lie in the source
  std::uint64_t entries = 0;  // checked against the directory's size: 46 bytes each at least
};

// Throws FormatError if the end record is missing or ambiguous, or if the records at the end are
// not adjacent up to the last byte.
ZipEnd find_zip_end(const Source& source);

// Returns whether a reader that searches from the end, such as a scanner, would find an archive.
bool ends_like_a_zip(const Source& source);

}  // namespace zerocopy
