// Asks which bytes of a file are in the page cache.
#pragma once

#include "io/file.h"

namespace zerocopy {

// Returns whether at least half of these bytes are in the page cache, so reading them copies memory
// and does not wait for the disk. Returns true if the kernel does not tell.
bool is_cached(const File& file, Extent extent);

}  // namespace zerocopy
