#include "binding/storages.h"

#include <pybind11/stl.h>

#include "binding/torch_bridge.h"
#include "io/mapping.h"
#include "pickle/geometry.h"
#include "python/buffer.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

py::object untyped_storage(const py::object& buffer, bool allow_readonly) {
  const Region region = region_of_buffer(buffer.ptr(), allow_readonly ? Access::any : Access::writable);
  return py::reinterpret_steal<py::object>(TorchStorage::over(region).wrap());
}

// Makes a tensor over an existing CPU storage, with the checks of the safe machine.
py::object view(const py::object& storage, const py::object& dtype, std::int64_t offset,
                const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride) {
  const TorchStorage native = TorchStorage::of(storage.ptr());
  if (!native.is_cpu()) throw py::value_error("expected a CPU storage");
  const ScalarType type = scalar_type_of(dtype.ptr());
  const std::int64_t item_size = item_size_of(type);
  const auto numel = static_cast<std::int64_t>(native.nbytes()) / item_size;
  const std::string reason = why_not_a_view(numel, item_size, offset, size, stride);
  if (!reason.empty()) throw FormatError("checkpoint: a tensor needs " + reason);
  return py::reinterpret_steal<py::object>(native.tensor({.dtype = type,
                                                          .offset = offset,
                                                          .size = size,
                                                          .stride = stride,
                                                          .requires_grad = false,
                                                          .conjugate = false,
                                                          .negative = false}));
}

// Makes a tensor without a storage, of a Python class, with this geometry.
py::object placeholder_of(const py::object& type, const py::object& dtype, std::int64_t offset,
                          const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride,
                          bool requires_grad) {
  if (PyType_Check(type.ptr()) == 0) throw py::type_error("expected a class");
  if (size.size() != stride.size()) throw py::value_error("expected a stride for each dimension");
  return steal(placeholder({.dtype = scalar_type_of(dtype.ptr()),
                            .offset = offset,
                            .size = size,
                            .stride = stride,
                            .requires_grad = requires_grad,
                            .conjugate = false,
                            .negative = false},
                           reinterpret_cast<PyTypeObject*>(type.ptr())));
}

Advice advice_of(const std::string& name) {
  if (name == "together") return Advice::together;
  if (name == "scattered") return Advice::scattered;
  return Advice::soon;
}

// Advises the kernel on a view's pages. `soon` is given for each contiguous run of elements. Other advice
// is given once, from the first to the last element: for each run, it would split the mapping into many.
void advise_view(const py::object& storage, const py::object& dtype, std::int64_t offset,
                 const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride,
                 const std::string& advice) {
  const TorchStorage native = TorchStorage::of(storage.ptr());
  if (!native.is_cpu()) return;
  const std::int64_t item_size = item_size_of(scalar_type_of(dtype.ptr()));
  const Advice number = advice_of(advice);
  const auto apply = [&](Extent extent) {
    extent.offset += static_cast<std::uint64_t>(offset * item_size);
    advise(native.bytes().subspan(extent), number);
  };
  if (number == Advice::soon) return for_each_run(size, stride, item_size, apply);
  const std::int64_t span = span_of(size, stride);
  if (span != 0) apply({0, static_cast<std::uint64_t>(span * item_size)});
}

}  // namespace

void register_storages(py::module_& module) {
  module.def("untyped_storage", &untyped_storage, py::arg("buffer"), py::arg("allow_readonly"));
  module.def("advise", &advise_view, py::arg("storage"), py::arg("dtype"), py::arg("offset"), py::arg("size"),
             py::arg("stride"), py::arg("advice"));
  module.def("placeholder", &placeholder_of, py::arg("cls"), py::arg("dtype"), py::arg("offset"),
             py::arg("size"), py::arg("stride"), py::arg("requires_grad"));
  module.def("view", &view, py::arg("storage"), py::arg("dtype"), py::arg("offset"), py::arg("size"),
             py::arg("stride"));
}

}  // namespace zerocopy
