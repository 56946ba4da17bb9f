#include "python/names.h"

#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {

py::str text_of(std::string_view name) {
  const auto size = static_cast<Py_ssize_t>(name.size());
  PyObject* text = PyUnicode_DecodeUTF8(name.data(), size, "surrogatepass");
  if (text == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    text = PyUnicode_DecodeUTF8(name.data(), size, "surrogateescape");
  }
  return steal(text);
}

std::optional<std::size_t> position_of(const NameIndex& name_index, py::handle name) {
  for (const char* surrogates : {"surrogatepass", "surrogateescape"}) {
    PyObject* made = PyUnicode_AsEncodedString(name.ptr(), "utf-8", surrogates);
    if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) != 0) {
      PyErr_Clear();
      continue;
    }
    const py::object bytes = steal(made);
    if (const auto leaf = name_index.find(
            {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))})) {
      return leaf;
    }
    if (PyUnicode_IS_ASCII(name.ptr())) break;
  }
  return std::nullopt;
}

py::list names_left_out(const Archive& archive) {
  py::list listed;
  for (const auto& [name, why] : archive.left_out()) listed.append(py::make_tuple(text_of(name), why));
  return listed;
}

void throw_missing(py::handle name) {
  PyErr_SetObject(PyExc_KeyError, name.ptr());
  throw py::error_already_set();
}

}  // namespace zerocopy
