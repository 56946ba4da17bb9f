// Registers the file that torch's writer writes to.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// UninterruptedFile. It calls no signal handler: in the middle of torch's writer, an exception from
// Python, such as that of Ctrl-C, would end the process or become another one.
void register_uninterrupted_file(pybind11::module_& module);

}  // namespace zerocopy
