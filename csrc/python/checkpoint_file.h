// A file, and the storages of the checkpoints in it as buffers, for arrays without torch; and what kind of
// file system has it.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// Adds CheckpointFile, Storages, Memory, file_system_of_path and file_system_of_descriptor to the module.
void register_checkpoint_file(pybind11::module_& module);

}  // namespace zerocopy
