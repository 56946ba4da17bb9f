// Finds what a program has put into modules and classes of other packages.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

void register_own_values(pybind11::module_& module);

}  // namespace zerocopy
