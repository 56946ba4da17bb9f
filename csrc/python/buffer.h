// A Python object's memory as a Region.
#pragma once

#include <Python.h>

#include "memory/region.h"

namespace zerocopy {

enum class Access : bool { writable, any };

// Holds the object's Py_buffer as long as the region lives, so that a bytearray cannot be resized
// nor an mmap closed under it. Throws pybind11::error_already_set: TypeError without the buffer
// protocol, BufferError when not contiguous, ValueError when read-only and Access::writable.
Region region_of_buffer(PyObject* object, Access access);

}  // namespace zerocopy
