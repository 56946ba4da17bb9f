// Maps a file. The mapping lives as long as a Region that shares it, and needs no Python to die:
// a tensor may be freed by any thread, at any time, also after the interpreter is gone.
#pragma once

#include "memory/file.h"
#include "memory/region.h"

namespace zerocopy {

// numpy's mode letters.
enum class Mode : std::uint8_t {
  copy_on_write,  // "c"   writes stay in this process
  read_only,      // "r"   writes fault
  shared,         // "r+"  writes reach the file
};

// The file from `offset` to its end. Private mappings reserve no swap (MAP_NORESERVE): without it
// the kernel refuses a writable mapping larger than memory although nothing will be written.
Region map_file(const File& file, std::uint64_t offset, Mode mode);

}  // namespace zerocopy
