// Finds what a program has put into modules and classes of other packages. The search runs over whole
// namespaces for each kept result, so it has to be fast: some nanoseconds a value.
#include "python/own_values.h"

#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace zerocopy {
namespace {

// Returns `dict[name]` if that is a string, else null. `dict` may be null.
PyObject* text_in(PyObject* dict, const py::str& name) {
  PyObject* found = dict == nullptr ? nullptr : PyDict_GetItem(dict, name.ptr());
  return found != nullptr && PyUnicode_Check(found) != 0 ? found : nullptr;
}

// Tells which module a value was defined in.
class Modules {
 public:
  explicit Modules(py::object content) : content_(std::move(content)) {}

  // Returns the name of the module that defines a function, a class, or an instance's class. Returns null
  // for a function of the searched namespace itself, and for built-in classes and their instances.
  PyObject* of(PyObject* value) const {
    py::object function;
    if (Py_IS_TYPE(value, &PyClassMethod_Type) || Py_IS_TYPE(value, &PyStaticMethod_Type)) {
      function = py::reinterpret_steal<py::object>(PyObject_GetAttrString(value, "__func__"));
      if (!function) throw py::error_already_set();
      value = function.ptr();
    }
    if (PyFunction_Check(value)) {
      PyObject* globals = PyFunction_GetGlobals(value);
      return globals == content_.ptr() ? nullptr : text_in(globals, name_);
    }
    // NOLINTNEXTLINE(*-reinterpret-cast): the C API's way
    auto* type = PyType_Check(value) != 0 ? reinterpret_cast<PyTypeObject*>(value) : Py_TYPE(value);
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0 ? nullptr : text_in(type->tp_dict, module_);
  }

 private:
  py::object content_;
  py::str name_{"__name__"};
  py::str module_{"__module__"};
};

py::list own_values(const py::object& owner, const py::function& is_own) {
  py::object content = owner.attr("__dict__");
  if (PyDict_Check(content.ptr()) == 0) content = py::dict(content);  // a class has a proxy
  const Modules modules(content);
  // `is_own` is called only after the loop, because code that it runs may change the namespace.
  std::vector<std::pair<py::object, py::object>> values;
  PyObject* name = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(content.ptr(), &position, &name, &value) != 0) {
    PyObject* module = modules.of(value);
    if (module == nullptr) continue;
    values.emplace_back(py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(module));
  }
  py::list found;
  std::unordered_map<PyObject*, bool> known;
  for (const auto& [key, module] : values) {
    const auto [at, is_new] = known.try_emplace(module.ptr(), false);
    if (is_new) at->second = is_own(module).cast<bool>();
    if (at->second) found.append(key);
  }
  return found;
}

}  // namespace

void register_own_values(py::module_& module) {
  module.def("own_values", &own_values, py::arg("owner"), py::arg("is_own"));
}

}  // namespace zerocopy
