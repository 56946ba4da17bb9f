#include "python/errors.h"

#include <pybind11/pybind11.h>

#include "memory/errors.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

void raise(const char* module, const char* name, const py::tuple& arguments) {
  const py::object type = py::module_::import(module).attr(name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}

// OSError(errno, strerror, filename) chooses the subclass, such as FileNotFoundError.
void raise_os_error(const FileError& error) {
  const std::string& path = error.path();
  const auto name = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  raise("builtins", "OSError", py::make_tuple(error.code().value(), error.reason(), name));
}

}  // namespace

void register_exceptions() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    if (!thrown) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const FormatError& error) {
      raise("zerocopy.errors", "FormatError", py::make_tuple(error.what()));
    } catch (const UnsupportedError& error) {
      raise("zerocopy.errors", "UnsupportedError", py::make_tuple(error.what()));
    } catch (const RefusedError& error) {
      raise("pickle", "UnpicklingError", py::make_tuple(error.what()));
    } catch (const FileError& error) {
      raise_os_error(error);
    }
  });
}

}  // namespace zerocopy
