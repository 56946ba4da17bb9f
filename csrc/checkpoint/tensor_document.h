// Builds documents for formats without a pickle: texts, storages, and tensors over them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "container/record.h"
#include "pickle/document.h"

namespace zerocopy {

// These functions copy their arguments, except views of the document's own text.
Value add_text(Document& document, std::string_view text);
const Storage& add_storage(Document& document, std::string_view key, const DType& dtype, std::uint64_t nbytes,
                           std::string_view location = "cpu");

// Both throw FormatError if the tensor exceeds the storage. The message begins with `what`. For a
// contiguous tensor, the key follows.
Tensor& add_view(Document& document, const Storage& storage, const DType& dtype, const StridedView& view,
                 const std::string& what);
Value add_tensor(Document& document, const Storage& storage, std::span<const std::int64_t> size,
                 std::string_view what);

}  // namespace zerocopy
