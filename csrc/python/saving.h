// Saves that go on while the program does.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// PlannedSave.
void register_saving(pybind11::module_& module);

}  // namespace zerocopy
