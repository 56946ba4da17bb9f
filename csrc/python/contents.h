// Names, shapes and places of the tensors of a checkpoint, for tools that run without torch.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace zerocopy {

// Adds `contents` and the type TensorFacts to the module.
void register_contents(pybind11::module_& module);

}  // namespace zerocopy
