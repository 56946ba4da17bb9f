// Builds documents for formats without a pickle: texts, and contiguous tensors with a storage each.
#pragma once

#include <span>
#include <string_view>

#include "pickle/document.h"

namespace zerocopy {

// Both functions copy their arguments, except views of the document's own text.
Value add_text(Document& document, std::string_view text);
const Storage& add_storage(Document& document, std::string_view key, const DType& dtype,
                           std::uint64_t nbytes);

// Throws FormatError if the tensor exceeds the storage. The message begins with `what` and the key.
Value add_tensor(Document& document, const Storage& storage, std::span<const std::int64_t> size,
                 std::string_view what);

}  // namespace zerocopy
