// The named records that _C returns to Python. _C.pyi lists their fields.
#pragma once

#include "python/record.h"

namespace zerocopy {

// The metadata of one tensor in a file.
const RecordType& tensor_entry();

// Makes the entry of a tensor that consists of several storages.
pybind11::object scattered_entry(const pybind11::tuple& shape, const pybind11::str& dtype);

// The position of a storage in the file, and the method by which its bytes reach memory.
const RecordType& storage_placement();

void register_records(pybind11::module_& module);

}  // namespace zerocopy
