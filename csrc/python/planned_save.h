// Registers saves that continue in the background.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// PlannedSave.
void register_planned_save(pybind11::module_& module);

}  // namespace zerocopy
