#include "binding/records.h"

namespace py = pybind11;

namespace zerocopy {

const RecordType& tensor_entry() {
  static const RecordType type(
      "zerocopy._C.TensorEntry",
      {"shape", "dtype", "stride", "storage_offset", "nbytes", "offset", "storage", "location",
       "requires_grad", "is_dense", "is_conjugate", "is_negative", "storage_nbytes", "is_mapped"});
  return type;
}

py::object scattered_entry(const py::tuple& shape, const py::str& dtype) {
  return tensor_entry().make(shape, dtype, py::tuple(), 0, 0, py::none(), "", "", false, false, false, false,
                             0, false);
}

const RecordType& storage_placement() {
  static const RecordType type("zerocopy._C.StoragePlacement",
                               {"key", "dtype", "nbytes", "location", "offset", "how", "why"});
  return type;
}

void register_records(py::module_& module) {
  module.attr("TensorEntry") = tensor_entry().type();
  module.attr("StoragePlacement") = storage_placement().type();
  module.def("scattered_entry", &scattered_entry, py::arg("shape"), py::arg("dtype"));
}

}  // namespace zerocopy
