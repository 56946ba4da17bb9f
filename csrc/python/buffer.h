// The memory of a Python object as a Region.
#pragma once

#include <Python.h>

#include "memory/region.h"

namespace zerocopy {

enum class Access : bool { writable, any };

// The region holds the object's Py_buffer, so a bytearray cannot be resized and an mmap cannot be
// closed. Throws pybind11::error_already_set: TypeError without the buffer protocol or over Python
// objects, BufferError if not contiguous, ValueError if read-only and Access::writable.
Region region_of_buffer(PyObject* object, Access access);

}  // namespace zerocopy
