// Names, shapes and positions of a checkpoint's tensors, for tools without torch.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace zerocopy {

// Adds `contents` and the type TensorFacts to the module.
void register_contents(pybind11::module_& module);

}  // namespace zerocopy
