#include "checkpoint/tensor_document.h"

#include <algorithm>
#include <array>
#include <functional>

#include "pickle/geometry.h"

namespace zerocopy {
namespace {

std::string_view kept(Document& document, std::string_view text) {
  const ByteSpan own = document.text();
  const std::less_equal<> before;
  const std::byte* begin = ByteSpan(text).data();
  if (before(own.data(), begin) && before(begin + text.size(), own.data() + own.size())) return text;
  auto* room = static_cast<char*>(document.arena().allocate(text.size(), 1));
  std::ranges::copy(text, room);
  return {room, text.size()};
}

Value tuple(Document& document, std::span<const std::int64_t> numbers) {
  auto& node = document.make<Sequence>(Kind::tuple);
  for (const std::int64_t number : numbers) node.items.push_back(document.arena(), document.integer(number));
  return Value::of(node);
}

// Computes contiguous strides as torch does, also for empty tensors. Returns false on overflow of
// int64.
bool contiguous(std::span<const std::int64_t> size, std::span<std::int64_t> stride) {
  std::int64_t step = 1;
  for (std::size_t i = size.size(); i-- > 0;) {
    stride[i] = step;
    if (__builtin_mul_overflow(step, std::max<std::int64_t>(size[i], 1), &step)) return false;
  }
  return true;
}

}  // namespace

Value add_text(Document& document, std::string_view text) {
  auto& node = document.make<Blob>(Kind::text);
  node.bytes = ByteSpan(kept(document, text));
  return Value::of(node);
}

const Storage& add_storage(Document& document, std::string_view key, const DType& dtype, std::uint64_t nbytes,
                           std::string_view location) {
  auto& storage = document.make<Storage>(Kind::storage);
  storage.index = document.storages.size();
  storage.key = kept(document, key);
  storage.location = location == "cpu" ? "cpu" : kept(document, location);
  storage.dtype = &dtype;
  storage.element = &dtype;
  storage.numel = static_cast<std::int64_t>(nbytes / dtype.size);
  storage.nbytes = nbytes;
  document.storages.push_back(&storage);
  return storage;
}

Value add_tensor(Document& document, const Storage& storage, std::span<const std::int64_t> size,
                 std::string_view what) {
  std::array<std::int64_t, kMaxDimensions> room{};
  if (size.size() > room.size())
    throw FormatError(std::string(what) + " " + quote(storage.key) + " has too many dimensions");
  const std::span<std::int64_t> stride = std::span(room).first(size.size());
  if (!contiguous(size, stride)) {
    throw FormatError(std::string(what) + " " + quote(storage.key) +
                      " declares a shape whose number of elements overflows");
  }
  return Value::of(add_view(document, storage, *storage.dtype, {0, size, stride},
                            std::string(what) + " " + quote(storage.key)));
}

Tensor& add_view(Document& document, const Storage& storage, const DType& dtype, const StridedView& view,
                 const std::string& what) {
  const auto numel = static_cast<std::int64_t>(storage.nbytes / dtype.size);
  const std::string reason = why_not_a_view(numel, dtype.size, view.offset, view.size, view.stride);
  if (!reason.empty()) throw FormatError(what + " needs " + reason);
  auto& tensor = document.make<Tensor>(Kind::tensor);
  tensor.index = document.tensors.size();
  tensor.storage = &storage;
  tensor.dtype = &dtype;
  tensor.offset = view.offset;
  tensor.size = &tuple(document, view.size).as<Sequence>();
  tensor.stride = &tuple(document, view.stride).as<Sequence>();
  document.tensors.push_back(&tensor);
  return tensor;
}

}  // namespace zerocopy
