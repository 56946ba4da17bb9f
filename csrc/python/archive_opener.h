// Opens an Archive from Python's path, descriptor or buffer, with the chosen read strategy.
#pragma once

#include <pybind11/pybind11.h>

#include "checkpoint/archive.h"

namespace zerocopy {

using ArchiveClass = pybind11::class_<Archive>;

// Registers Archive.open, open_descriptor, open_buffer, open_object, is_direct, and MultiArchiveFile.
void register_archive_opener(pybind11::module_& module, ArchiveClass& archive);

}  // namespace zerocopy
