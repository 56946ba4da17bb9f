// The named records that _C returns to Python. _C.pyi lists their fields.
#pragma once

#include "container/record.h"
#include "pickle/document.h"
#include "python/record.h"

namespace zerocopy {

// Makes a TensorEntry: the metadata of a dense tensor in a file. `record` is that of its storage.
pybind11::object tensor_entry(const Value& value, const Record& record, bool is_mapped);

// Makes a TensorOutline: what the document alone says about a tensor.
pybind11::object tensor_outline(const Value& value);

// Makes the entry of a tensor that consists of several storages.
pybind11::object scattered_entry(const pybind11::tuple& shape, const pybind11::str& dtype);

// The position of a storage in the file, and the method by which its bytes reach memory.
const RecordType& storage_placement();

void register_records(pybind11::module_& module);

}  // namespace zerocopy
