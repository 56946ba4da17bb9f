// A document that comes of no pickle: texts, and tensors that are a storage each, row by row.
#pragma once

#include <span>
#include <string_view>

#include "pickle/document.h"

namespace zerocopy {

// Both copy what they are given, unless it is a view of the document's own text.
Value add_text(Document& document, std::string_view text);
const Storage& add_storage(Document& document, std::string_view key, const DType& dtype,
                           std::uint64_t nbytes);

// Throws FormatError, which begins with `what` and the storage's key, where the storage does not hold it.
Value add_tensor(Document& document, const Storage& storage, std::span<const std::int64_t> size,
                 std::string_view what);

}  // namespace zerocopy
