// Python's C API with exceptions and owned references.
#pragma once

#include <pybind11/pybind11.h>

#include "memory/bytes.h"

namespace zerocopy {

// Takes a new reference. Throws the Python exception that is set if there is none.
inline pybind11::object steal(PyObject* made) {
  if (made == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

inline void require(int status) {
  if (status != 0) throw pybind11::error_already_set();
}

inline pybind11::object copied(PyObject* (*make)(const char*, Py_ssize_t), ByteSpan bytes) {
  return steal(make(bytes.text().data(), static_cast<Py_ssize_t>(bytes.size())));
}

}  // namespace zerocopy
