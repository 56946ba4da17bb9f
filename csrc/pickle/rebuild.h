// The calls that the machine makes by itself: tensors, parameters and a few plain types, built from
// arguments that are checked one by one. No Python function is behind any of them.
#pragma once

#include "pickle/document.h"

namespace zerocopy {

// What `callable(*arguments)` gives, for every native Action. Throws FormatError when the arguments
// are not those that torch.save writes.
Value call_native(Document& document, const Global& callable, const Sequence& arguments,
                  std::uint64_t offset);

}  // namespace zerocopy
