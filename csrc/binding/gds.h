// GPUDirect Storage, for Python: cuFile's driver, and files that go straight to the memory of storages.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// GdsDriver, GdsFile, GdsRead.
void register_gds(pybind11::module_& module);

}  // namespace zerocopy
