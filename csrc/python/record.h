// Read-only records with named fields for Python: struct sequences, which are created as fast as
// tuples.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "python/python.h"

namespace zerocopy {

// Create one per kind of record. The type is never freed, since records may outlive the module.
class RecordType {
 public:
  // `name` includes the module: "zerocopy._C.TensorEntry". All arguments are string literals.
  RecordType(const char* name, std::initializer_list<const char*> fields);

  pybind11::handle type() const noexcept { return reinterpret_cast<PyObject*>(type_); }

  // Makes a record from the values of all fields, in order.
  template <typename... Values>
  pybind11::object make(Values&&... values) const {
    pybind11::object record = steal(PyStructSequence_New(type_));
    Py_ssize_t i = 0;
    (PyStructSequence_SetItem(record.ptr(), i++, reference_to(std::forward<Values>(values))), ...);
    return record;
  }

 private:
  template <typename Value>
  static PyObject* reference_to(Value&& value) {
    if constexpr (std::is_base_of_v<pybind11::object, std::remove_cvref_t<Value>>) {
      return pybind11::object(std::forward<Value>(value)).release().ptr();
    } else {
      return pybind11::cast(std::forward<Value>(value)).release().ptr();
    }
  }

  PyTypeObject* type_;
};

}  // namespace zerocopy
