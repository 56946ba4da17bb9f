#include "python/buffer.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// The last reference may be released on any thread, without the GIL.
class PythonBuffer final : public Owner {
 public:
  explicit PythonBuffer(PyObject* object) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_FULL_RO) != 0) throw py::error_already_set();
  }
  ~PythonBuffer() override {
    release_with_gil([this] { PyBuffer_Release(&view_); });
  }

  const Py_buffer& view() const noexcept { return view_; }

 private:
  Py_buffer view_{};
};

// Returns whether a format of the struct module has Python objects among its items. Names stand
// between colons.
bool has_objects(std::string_view format) {
  bool is_name = false;
  return std::ranges::any_of(format, [&is_name](char code) {
    is_name = is_name != (code == ':');
    return code == 'O' && !is_name;
  });
}

}  // namespace

Region region_of_buffer(PyObject* object, Access access) {
  auto* buffer = new PythonBuffer(object);
  OwnerRef reference(buffer);
  const Py_buffer& view = buffer->view();
  if (PyBuffer_IsContiguous(&view, 'C') == 0) {
    PyErr_SetString(PyExc_BufferError,
                    "the buffer is not C-contiguous; a storage is one run of bytes (copy it first)");
    throw py::error_already_set();
  }
  if (view.format != nullptr && has_objects(view.format)) {
    PyErr_SetString(PyExc_TypeError,
                    "the buffer holds Python objects; a write to the storage would end the process");
    throw py::error_already_set();
  }
  if (view.readonly != 0 && access == Access::writable) {
    PyErr_SetString(PyExc_ValueError,
                    "the buffer is read-only and tensors can be written to: pass allow_readonly=True "
                    "to take it all the same (a write then corrupts it or kills the process)");
    throw py::error_already_set();
  }
  return {static_cast<std::byte*>(view.buf), static_cast<std::size_t>(view.len), std::move(reference)};
}

}  // namespace zerocopy
