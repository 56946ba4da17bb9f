#include "checkpoint/safetensors_archive.h"

#include <algorithm>
#include <array>

#include "checkpoint/tensor_document.h"

namespace zerocopy {
namespace {

// torch's dtypes for the format's names. F4 is packed: torch stores two numbers per element. torch
// has no dtype for F6.
struct FormatDtype {
  std::string_view format;
  std::string_view torch;
  std::int64_t packed = 1;
};
constexpr std::array kNamed{
    FormatDtype{"BOOL", "bool"},
    FormatDtype{"U8", "uint8"},
    FormatDtype{"I8", "int8"},
    FormatDtype{"F8_E5M2", "float8_e5m2"},
    FormatDtype{"F8_E4M3", "float8_e4m3fn"},
    FormatDtype{"F8_E8M0", "float8_e8m0fnu"},
    FormatDtype{"F8_E4M3FNUZ", "float8_e4m3fnuz"},
    FormatDtype{"F8_E5M2FNUZ", "float8_e5m2fnuz"},
    FormatDtype{"I16", "int16"},
    FormatDtype{"U16", "uint16"},
    FormatDtype{"F16", "float16"},
    FormatDtype{"BF16", "bfloat16"},
    FormatDtype{"I32", "int32"},
    FormatDtype{"U32", "uint32"},
    FormatDtype{"F32", "float32"},
    FormatDtype{"C64", "complex64"},
    FormatDtype{"F64", "float64"},
    FormatDtype{"I64", "int64"},
    FormatDtype{"U64", "uint64"},
    FormatDtype{"F4", "float4_e2m1fn_x2", 2},
};

const FormatDtype& named(const SafetensorsEntry& entry) {
  const auto* found = std::find_if(kNamed.begin(), kNamed.end(),
                                   [&](const FormatDtype& dtype) { return dtype.format == entry.dtype; });
  if (found != kNamed.end()) return *found;
  throw UnsupportedError("safetensors: tensor " + quote(entry.name) + " is of dtype " + quote(entry.dtype) +
                         ", which torch does not have");
}

Value tensor_of(Document& document, const SafetensorsEntry& entry) {
  const FormatDtype& as = named(entry);
  const Storage& storage = add_storage(document, entry.name, *dtype_by_name(as.torch), entry.extent.size);
  if (as.packed == 1) return add_tensor(document, storage, entry.shape, "safetensors: tensor");
  if (entry.shape.empty() || entry.shape.back() % as.packed != 0) {
    throw UnsupportedError("safetensors: tensor " + quote(entry.name) +
                           ": its rows end within an element of " + std::string(as.torch));
  }
  std::vector<std::int64_t> size(entry.shape.begin(), entry.shape.end());
  size.back() /= as.packed;
  return add_tensor(document, storage, size, "safetensors: tensor");
}

}  // namespace

Region SafetensorsArchive::pickle() const {
  throw UnsupportedError("checkpoint: a safetensors file has no pickle");
}

Document SafetensorsArchive::document(bool /*stubs*/) const {
  Document document(header_.text());
  auto& tensors = document.make<Mapping>(Kind::dict);
  document.root = Value::of(tensors);
  for (const SafetensorsEntry& entry : header_.entries()) {
    tensors.items.push_back(document.arena(), {add_text(document, entry.name), tensor_of(document, entry)});
  }
  auto& metadata = document.make<Mapping>(Kind::dict);
  document.metadata = Value::of(metadata);
  for (const auto& [key, value] : header_.metadata()) {
    metadata.items.push_back(document.arena(), {add_text(document, key), add_text(document, value)});
  }
  return document;
}

std::vector<Record> SafetensorsArchive::records(std::span<const StorageRequest> storages) {
  const auto& entries = header_.entries();
  if (storages.size() != entries.size())
    throw FormatError("safetensors: the storages are not those of its own document");
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
