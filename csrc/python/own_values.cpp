// Finds what a program has put into modules and classes of other packages. Asked of whole
// namespaces for each kept result, so a value costs some nanoseconds.
#include "python/own_values.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

bool is_in(const py::handle& names, PyObject* name) {
  if (name == nullptr || PyUnicode_Check(name) == 0) return false;
  const int found = PySet_Contains(names.ptr(), name);
  if (found < 0) throw py::error_already_set();
  return found == 1;
}

// The names of modules that a value can be of, and the strings to look them up by.
class Modules {
 public:
  Modules(py::frozenset names, py::object namespace_of_owner)
      : names_(std::move(names)), content_(std::move(namespace_of_owner)) {}

  // Returns whether a value is a function, a class or an instance of a class of these modules.
  bool have(PyObject* value) const {
    py::object function;
    if (Py_IS_TYPE(value, &PyClassMethod_Type) || Py_IS_TYPE(value, &PyStaticMethod_Type)) {
      function = py::reinterpret_steal<py::object>(PyObject_GetAttrString(value, "__func__"));
      if (!function) throw py::error_already_set();
      value = function.ptr();
    }
    if (PyFunction_Check(value)) {
      PyObject* globals = PyFunction_GetGlobals(value);
      return globals != content_.ptr() && is_in(names_, PyDict_GetItem(globals, name_.ptr()));
    }
    // NOLINTNEXTLINE(*-reinterpret-cast): the C API's way
    auto* type = PyType_Check(value) != 0 ? reinterpret_cast<PyTypeObject*>(value) : Py_TYPE(value);
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0 || type->tp_dict == nullptr) return false;
    return is_in(names_, PyDict_GetItem(type->tp_dict, module_.ptr()));
  }

 private:
  py::frozenset names_;
  py::object content_;
  py::str name_{"__name__"};
  py::str module_{"__module__"};
};

py::list own_values(const py::object& owner, const py::frozenset& modules) {
  py::object content = owner.attr("__dict__");
  if (PyDict_Check(content.ptr()) == 0) content = py::dict(content);  // a class has a proxy
  const Modules wanted(modules, content);
  py::list found;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(content.ptr(), &position, &name, &value) != 0) {
    if (wanted.have(value)) found.append(py::reinterpret_borrow<py::object>(name));
  }
  return found;
}

}  // namespace

void register_own_values(py::module_& module) {
  module.def("own_values", &own_values, py::arg("owner"), py::arg("modules"));
}

}  // namespace zerocopy
