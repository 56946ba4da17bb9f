// A Source over a Python object that reads at offsets: a file object, or a file that is not on
// this machine.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "io/source.h"
#include "python/file_name.h"

namespace zerocopy {

// `reader` has `size`, `read(offset, nbytes)`, which returns exactly `nbytes` bytes, and
// `require_unchanged()`, like the classes of loading/file_objects.py. Any thread may read, with or
// without the GIL. A reader whose `is_far` is true reads from another machine.
std::shared_ptr<const Source> source_of_object(const pybind11::object& reader);

// Returns a Source over an open file, given by its descriptor, or over a reader.
std::shared_ptr<const Source> source_of(const pybind11::object& file, const FileName& name);

}  // namespace zerocopy
