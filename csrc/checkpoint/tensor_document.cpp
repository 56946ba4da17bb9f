#include "checkpoint/tensor_document.h"

#include <algorithm>
#include <vector>

#include "pickle/geometry.h"

namespace zerocopy {
namespace {

Value tuple(Document& document, std::span<const std::int64_t> numbers) {
  std::vector<Value> items;
  items.reserve(numbers.size());
  for (const std::int64_t number : numbers) items.push_back(document.integer(number));
  auto& node = document.make<Sequence>(Kind::tuple);
  node.items.assign(document.arena(), items);
  return Value::of(node);
}

// Row by row, as torch counts it: of what is empty too. False where a stride is no int64.
bool contiguous(std::span<const std::int64_t> size, std::vector<std::int64_t>& stride) {
  stride.resize(size.size());
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
  auto* room = static_cast<std::byte*>(document.arena().allocate(text.size(), 1));
  std::copy_n(ByteSpan(text).data(), text.size(), room);
  node.bytes = ByteSpan(room, text.size());
  return Value::of(node);
}

const Storage& add_storage(Document& document, std::string_view key, const DType& dtype,
                           std::uint64_t nbytes) {
  auto& storage = document.make<Storage>(Kind::storage);
  storage.index = document.storages.size();
  storage.key = add_text(document, key).as<Blob>().bytes.text();
  storage.location = "cpu";
  storage.dtype = &dtype;
  storage.element = &dtype;
  storage.numel = static_cast<std::int64_t>(nbytes / dtype.size);
  storage.nbytes = nbytes;
  document.storages.push_back(&storage);
  return storage;
}

Value add_tensor(Document& document, const Storage& storage, std::span<const std::int64_t> size,
                 std::string_view what) {
  std::vector<std::int64_t> stride;
  std::string reason = contiguous(size, stride) ? "" : "a shape that overflows";
  if (reason.empty()) reason = why_not_a_view(storage.numel, storage.dtype->size, 0, size, stride);
  if (!reason.empty()) {
    throw FormatError(std::string(what) + " " + quote(storage.key) + " needs " + reason);
  }
  auto& tensor = document.make<Tensor>(Kind::tensor);
  tensor.index = document.tensors.size();
  tensor.storage = &storage;
  tensor.dtype = storage.dtype;
  tensor.size = &tuple(document, size).as<Sequence>();
  tensor.stride = &tuple(document, stride).as<Sequence>();
  document.tensors.push_back(&tensor);
  return Value::of(tensor);
}

}  // namespace zerocopy
