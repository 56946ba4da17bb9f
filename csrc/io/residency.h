// What of a file is in the page cache.
#pragma once

#include "io/file.h"

namespace zerocopy {

// Whether at least half of these bytes are: then reading them plainly copies memory, else it waits for the
// disk. True where the kernel does not say.
bool is_cached(const File& file, Extent extent);

}  // namespace zerocopy
