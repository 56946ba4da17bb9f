#include "pickle/storages.h"

#include "memory/utf8.h"
#include "pickle/geometry.h"

namespace zerocopy {
namespace {

constexpr std::size_t kIdSize = 5;
constexpr std::size_t kMaxLocation = 200;
constexpr std::size_t kMaxKey = 200;  // torch counts "0", "1", ...; each use of a key hashes it

[[noreturn]] void fail(const std::string& reason, std::uint64_t offset) {
  throw FormatError("pickle: persistent id: " + reason + " (at " + hex(offset) + ")");
}

const Global* storage_class(const Value& value) {
  if (!value.is(Kind::global)) return nullptr;
  const auto& global = value.as<Global>();
  return global.action == Action::storage_class ? &global : nullptr;
}

}  // namespace

Storage& StorageTable::load(Document& document, const Value& id, std::uint64_t offset) {
  if (!id.is(Kind::tuple)) fail("not a tuple", offset);
  const auto& items = id.as<Sequence>().items;
  if (items.empty() || !items[0].is_text()) fail("does not begin with a type name", offset);
  const std::string_view type_name = items[0].as<Blob>().bytes.text();
  if (type_name == "module") {
    throw RefusedError("pickle: persistent id of a module (its source file would be read, at " + hex(offset) +
                       ")");
  }
  if (type_name != "storage") fail("of type " + quote(type_name), offset);
  if (items.size() != kIdSize) fail(std::to_string(items.size()) + " items instead of 5", offset);
  const Global* type = storage_class(items[1]);
  if (type == nullptr) fail("its second item is no storage class", offset);
  if (!items[2].is_text()) fail("its key is no string", offset);
  if (!items[3].is_text()) fail("its location is no string", offset);
  if (!items[4].is(Kind::integer)) fail("its number of elements is no 64-bit integer", offset);
  const std::string_view key = items[2].as<Blob>().bytes.text();
  const std::string_view location = items[3].as<Blob>().bytes.text();
  const std::int64_t numel = items[4].integer();
  if (key.size() > kMaxKey) fail("key " + quote(key) + " is too long", offset);
  if (location.size() > kMaxLocation || !is_utf8(ByteSpan(location), Surrogates::refuse)) {
    fail("location " + quote(location), offset);
  }
  std::uint64_t nbytes = 0;
  if (!byte_count(numel, type->dtype->size, nbytes)) {
    fail(std::to_string(numel) + " elements of " + std::to_string(type->dtype->size) + " bytes", offset);
  }

  const auto [entry, is_new] = by_key_.insert(key, made_.size());
  if (is_new) {
    auto& storage = document.make<Storage>(Kind::storage);
    storage.index = made_.size();
    storage.key = key;
    storage.location = location;
    storage.dtype = type->dtype;
    storage.element = type->dtype;
    storage.numel = numel;
    storage.nbytes = nbytes;
    document.storages.push_back(&storage);
    made_.push_back(&storage);
  }
  Storage& storage = *made_[entry->value];
  if (storage.dtype != type->dtype || storage.numel != numel || storage.location != location) {
    fail("storage " + quote(key) + " is named twice, with another type, size or location", offset);
  }
  return storage;
}

}  // namespace zerocopy
