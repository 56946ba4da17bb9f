#include "checkpoint/safetensors_archive.h"

#include <algorithm>
#include <array>

#include "pickle/geometry.h"

namespace zerocopy {
namespace {

// The format's names of torch's dtypes. F4 is packed: torch has two numbers in each element. Of F6 torch has
// none.
struct Named {
  std::string_view format;
  std::string_view torch;
  std::int64_t packed = 1;
};
constexpr std::array kNamed{
    Named{"BOOL", "bool"},
    Named{"U8", "uint8"},
    Named{"I8", "int8"},
    Named{"F8_E5M2", "float8_e5m2"},
    Named{"F8_E4M3", "float8_e4m3fn"},
    Named{"F8_E8M0", "float8_e8m0fnu"},
    Named{"F8_E4M3FNUZ", "float8_e4m3fnuz"},
    Named{"F8_E5M2FNUZ", "float8_e5m2fnuz"},
    Named{"I16", "int16"},
    Named{"U16", "uint16"},
    Named{"F16", "float16"},
    Named{"BF16", "bfloat16"},
    Named{"I32", "int32"},
    Named{"U32", "uint32"},
    Named{"F32", "float32"},
    Named{"C64", "complex64"},
    Named{"F64", "float64"},
    Named{"I64", "int64"},
    Named{"U64", "uint64"},
    Named{"F4", "float4_e2m1fn_x2", 2},
};

const Named& named(const SafetensorsEntry& entry) {
  const auto* found = std::find_if(kNamed.begin(), kNamed.end(),
                                   [&](const Named& dtype) { return dtype.format == entry.dtype; });
  if (found != kNamed.end()) return *found;
  throw UnsupportedError("safetensors: tensor " + quote(entry.name) + " is of dtype " + quote(entry.dtype) +
                         ", which torch does not have");
}

Value text(Document& document, std::string_view bytes) {
  auto& node = document.make<Blob>(Kind::text);
  auto* room = static_cast<std::byte*>(document.arena().allocate(bytes.size(), 1));
  std::copy_n(ByteSpan(bytes).data(), bytes.size(), room);
  node.bytes = ByteSpan(room, bytes.size());
  return Value::of(node);
}

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

Storage& add_storage(Document& document, std::string_view key, const DType& dtype, std::uint64_t nbytes) {
  auto& storage = document.make<Storage>(Kind::storage);
  storage.index = document.storages.size();
  storage.key = key;
  storage.location = "cpu";
  storage.dtype = &dtype;
  storage.element = &dtype;
  storage.numel = static_cast<std::int64_t>(nbytes / dtype.size);
  storage.nbytes = nbytes;
  document.storages.push_back(&storage);
  return storage;
}

Value add_tensor(Document& document, std::string_view name, const SafetensorsEntry& entry) {
  const Named& as = named(entry);
  const DType& dtype = *dtype_by_name(as.torch);
  const Storage& storage = add_storage(document, name, dtype, entry.extent.size);
  std::vector<std::int64_t> size(entry.shape.begin(), entry.shape.end());
  if (as.packed != 1) {
    if (size.empty() || size.back() % as.packed != 0) {
      throw UnsupportedError("safetensors: tensor " + quote(name) + ": rows that end within an element of " +
                             std::string(as.torch));
    }
    size.back() /= as.packed;
  }
  std::vector<std::int64_t> stride;
  std::string reason = contiguous(size, stride) ? "" : "a shape that overflows";
  if (reason.empty()) reason = why_not_a_view(storage.numel, dtype.size, 0, size, stride);
  if (!reason.empty()) throw FormatError("safetensors: tensor " + quote(name) + " needs " + reason);
  auto& tensor = document.make<Tensor>(Kind::tensor);
  tensor.index = document.tensors.size();
  tensor.storage = &storage;
  tensor.dtype = &dtype;
  tensor.size = &tuple(document, size).as<Sequence>();
  tensor.stride = &tuple(document, stride).as<Sequence>();
  document.tensors.push_back(&tensor);
  return Value::of(tensor);
}

}  // namespace

Region SafetensorsArchive::pickle() const {
  throw UnsupportedError("checkpoint: a safetensors file has no pickle");
}

Document SafetensorsArchive::document(bool /*take_modules*/) const {
  Document document(header_.text());
  auto& tensors = document.make<Mapping>(Kind::dict);
  document.root = Value::of(tensors);
  for (const SafetensorsEntry& entry : header_.entries()) {
    const Value name = text(document, entry.name);
    const Value tensor = add_tensor(document, name.as<Blob>().bytes.text(), entry);
    tensors.items.push_back(document.arena(), {name, tensor});
  }
  auto& metadata = document.make<Mapping>(Kind::dict);
  document.metadata = Value::of(metadata);
  for (const auto& [key, value] : header_.metadata()) {
    metadata.items.push_back(document.arena(), {text(document, key), text(document, value)});
  }
  return document;
}

std::vector<Record> SafetensorsArchive::records(std::span<const Wanted> storages) {
  const auto& entries = header_.entries();
  if (storages.size() != entries.size()) throw FormatError("safetensors: storages that are not its own");
  std::vector<Record> records;
  records.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    records.push_back({.name = entry.name,
                       .extent = entry.extent,
                       .encoding = Encoding::stored,
                       .size = entry.extent.size});
  }
  return records;
}

}  // namespace zerocopy
