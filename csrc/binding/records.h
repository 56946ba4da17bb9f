// The named records that _C hands to Python; _C.pyi has their fields.
#pragma once

#include "python/record.h"

namespace zerocopy {

// The facts that a file states about one tensor.
const RecordType& tensor_entry();

// The entry of a tensor that is not made of one storage.
pybind11::object scattered_entry(const pybind11::tuple& shape, const pybind11::str& dtype);

// Where a storage lies, and how it comes to memory.
const RecordType& storage_placement();

void register_records(pybind11::module_& module);

}  // namespace zerocopy
