// Names, shapes and positions of a checkpoint's tensors, for tools without torch.
#pragma once

#include <pybind11/pybind11.h>

#include "checkpoint/archive.h"

namespace zerocopy {

// Lists the content of a checkpoint that was read with `stubs`: the tensors, and `with_others` the values
// beside them, which may be a million.
pybind11::dict facts_of(const Archive& archive, const ParsedCheckpoint& parsed, bool with_others);

// Adds `contents` and the type TensorFacts to the module.
void register_contents(pybind11::module_& module);

}  // namespace zerocopy
