#include "binding/records.h"

#include "binding/tensors.h"
#include "checkpoint/name_index.h"
#include "python/names.h"

namespace py = pybind11;

namespace zerocopy {

namespace {

const RecordType& entry_type() {
  static const RecordType type(
      "zerocopy._C.TensorEntry",
      {"shape", "dtype", "stride", "storage_offset", "nbytes", "offset", "storage", "location",
       "requires_grad", "is_dense", "is_conjugate", "is_negative", "storage_nbytes", "is_mapped"});
  return type;
}

const RecordType& outline_type() {
  static const RecordType type("zerocopy._C.TensorOutline", {"shape", "dtype", "storage", "is_dense"});
  return type;
}

}  // namespace

py::object tensor_entry(const Value& value, const Record& record, bool is_mapped) {
  const Tensor& tensor = *NameIndex::dense(value);
  const Storage& storage = *tensor.storage;
  const Storage& root = storage.whole();
  const Shape shape(tensor);
  std::int64_t numel = 1;
  for (const std::int64_t n : shape.size()) numel *= n;
  py::object offset = py::none();
  if (record.encoding == Encoding::stored) {
    // One without elements may begin outside of its storage.
    const std::int64_t begin = numel == 0 ? 0 : tensor.offset;
    offset = py::int_(record.extent.offset + storage.begin +
                      static_cast<std::uint64_t>(begin) * tensor.dtype->size);
  }
  const bool requires_grad =
      value.is(Kind::parameter) ? value.as<Parameter>().requires_grad : tensor.requires_grad;
  return entry_type().make(tuple_of(shape.size()), tensor.dtype->name, tuple_of(shape.stride()),
                           tensor.offset, numel * tensor.dtype->size, offset, text_of(root.key),
                           text_of(root.location), requires_grad, true, tensor.conjugate, tensor.negative,
                           root.nbytes, is_mapped);
}

py::object tensor_outline(const Value& value) {
  const Tensor* tensor = NameIndex::dense(value);
  if (tensor == nullptr) return outline_type().make(py::tuple(), py::str(), py::str(), false);
  return outline_type().make(tuple_of(Shape(*tensor).size()), tensor->dtype->name,
                             text_of(tensor->storage->whole().key), true);
}

py::object scattered_entry(const py::tuple& shape, const py::str& dtype) {
  return entry_type().make(shape, dtype, py::tuple(), 0, 0, py::none(), "", "", false, false, false, false, 0,
                           false);
}

const RecordType& storage_placement() {
  static const RecordType type("zerocopy._C.StoragePlacement",
                               {"key", "dtype", "nbytes", "location", "offset", "how", "why"});
  return type;
}

void register_records(py::module_& module) {
  module.attr("TensorEntry") = entry_type().type();
  module.attr("TensorOutline") = outline_type().type();
  module.attr("StoragePlacement") = storage_placement().type();
  module.def("scattered_entry", &scattered_entry, py::arg("shape"), py::arg("dtype"));
}

}  // namespace zerocopy
