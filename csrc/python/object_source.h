// A Source over a Python object that reads by position: a file object, or a file that is not on
// this machine.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "io/source.h"

namespace zerocopy {

// `reader` has `size`, `read(offset, nbytes)`, which returns so many bytes, and
// `require_unchanged()`, as the classes of loading/file_objects.py. Any thread may read, with or
// without the GIL.
std::shared_ptr<const Source> source_of_object(pybind11::object reader);

}  // namespace zerocopy
