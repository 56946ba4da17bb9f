// The calls that the machine makes natively: tensors, parameters and a few plain types. Each
// argument is checked. No Python function is called.
#pragma once

#include "pickle/document.h"

namespace zerocopy {

// Returns the result of `callable(*arguments)` for a native Action. Throws FormatError when the
// arguments are not those that torch.save writes.
Value call_native(Document& document, const Global& callable, const Sequence& arguments,
                  std::uint64_t offset);

// Returns the tensor within a call of _rebuild_from_type_v2(function, class, arguments, state): the
// result without its state, if the function is native and the class torch.Tensor. Otherwise, and for
// any other call, returns null.
const Tensor* tensor_without_state(Document& document, const Global& callable, const Sequence& arguments,
                                   std::uint64_t offset);

}  // namespace zerocopy
