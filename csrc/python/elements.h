// Compares the elements of two tensors by their bits, for tools without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// Adds `compare_elements` to the module.
void register_elements(pybind11::module_& module);

}  // namespace zerocopy
