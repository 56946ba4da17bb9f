// From what Python gives (path, descriptor, buffer) to an Archive, and how its bytes come to memory.
#pragma once

#include <pybind11/pybind11.h>

#include "checkpoint/archive.h"

namespace zerocopy {

using ArchiveClass = pybind11::class_<Archive>;

// Archive.open, open_descriptor, open_buffer, is_direct; MultiArchiveFile.
void register_opening(pybind11::module_& module, ArchiveClass& archive);

}  // namespace zerocopy
