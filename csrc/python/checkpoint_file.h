// A file, and the storages of the checkpoints in it as buffers, for arrays without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// Adds the types CheckpointFile, Storages and Memory to the module.
void register_checkpoint_file(pybind11::module_& module);

}  // namespace zerocopy
