// Records with named fields for Python, read-only: struct sequences, which take no longer to make than
// tuples.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "python/python.h"

namespace zerocopy {

// Made once for each kind of record. It is never freed: records may outlive the module.
class RecordType {
 public:
  // `name` is the module's and the type's, "zerocopy._C.TensorEntry". All of these are string literals.
  RecordType(const char* name, std::initializer_list<const char*> fields);

  pybind11::handle type() const noexcept { return reinterpret_cast<PyObject*>(type_); }

  // The values of all fields, in their order.
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
