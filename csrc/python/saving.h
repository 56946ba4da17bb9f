// Writes files for Python: NewFile, ArchivePlan, ArchiveWriter.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

void register_saving(pybind11::module_& module);

}  // namespace zerocopy
