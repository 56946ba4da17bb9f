#include "binding/buffer.h"

#include <pybind11/pybind11.h>

#include <memory>

namespace py = pybind11;

namespace zerocopy {
namespace {

bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// The last share may die on any thread, without the GIL, or in a static destructor after the
// interpreter. Then taking the GIL would hang or crash the process, so the buffer is leaked: the
// process is about to end.
void release_buffer(Py_buffer* view) {
  if (interpreter_is_ending()) return;
  const py::gil_scoped_acquire gil;
  PyBuffer_Release(view);
  delete view;
}

}  // namespace

Region region_of_buffer(PyObject* object, Access access) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object, view.get(), PyBUF_FULL_RO) != 0) throw py::error_already_set();
  std::shared_ptr<Py_buffer> held(view.release(), &release_buffer);
  if (PyBuffer_IsContiguous(held.get(), 'C') == 0) {
    PyErr_SetString(PyExc_BufferError,
                    "the buffer is not C-contiguous; a storage is one run of bytes (copy it first)");
    throw py::error_already_set();
  }
  if (held->readonly != 0 && access == Access::writable) {
    PyErr_SetString(PyExc_ValueError,
                    "the buffer is read-only and tensors can be written to: pass allow_readonly=True "
                    "to take it all the same (a write then corrupts it or kills the process)");
    throw py::error_already_set();
  }
  auto* data = static_cast<std::byte*>(held->buf);
  const auto size = static_cast<std::size_t>(held->len);
  return {data, size, std::move(held)};
}

}  // namespace zerocopy
