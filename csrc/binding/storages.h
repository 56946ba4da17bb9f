// Storages over buffers, and views of storages, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// untyped_storage, view, advise.
void register_storages(pybind11::module_& module);

}  // namespace zerocopy
