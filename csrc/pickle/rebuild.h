// The calls that the machine makes natively: tensors, parameters and a few plain types. Each
// argument is checked. No Python function is called.
#pragma once

#include "pickle/document.h"

namespace zerocopy {

// Returns the result of `callable(*arguments)` for a native Action. Throws FormatError when the
// arguments are not those that torch.save writes.
Value call_native(Document& document, const Global& callable, const Sequence& arguments,
                  std::uint64_t offset);

}  // namespace zerocopy
