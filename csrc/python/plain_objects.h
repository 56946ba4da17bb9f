// A pickle as plain Python values: the objects and globals in it become records, without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// Adds unpickled(pickle), which returns the value of a pickle outside of any archive. Objects become
// PlainObject, globals PlainGlobal. It throws UnsupportedError if the pickle has tensors, FormatError
// if it changes an object as if the object were a container. Adds itemsize(dtype): the bytes of an
// element, 0 for an unknown dtype.
void register_plain_objects(pybind11::module_& module);

}  // namespace zerocopy
