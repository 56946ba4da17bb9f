// GPUDirect Storage for Python: cuFile's driver, and direct transfers between files and storages.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// GdsDriver, GdsFile, GdsRead.
void register_gds(pybind11::module_& module);

}  // namespace zerocopy
