// The last bytes of a zip archive: where its central directory is and how many entries it has.
#pragma once

#include "io/source.h"

namespace zerocopy {

struct ZipEnd {
  Extent directory;           // inside the source, checked
  std::uint64_t entries = 0;  // at least 46 bytes of directory each, checked
};

// Throws FormatError when there is no end record, when there are two, or when the records at the
// end do not follow one another to the last byte.
ZipEnd find_zip_end(const Source& source);

// Whether something that looks for a zip archive from behind, as scanners do, would find one.
bool ends_like_a_zip(const Source& source);

}  // namespace zerocopy
