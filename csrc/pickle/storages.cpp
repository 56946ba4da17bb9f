#include "pickle/storages.h"

#include <algorithm>

#include "pickle/geometry.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

constexpr std::size_t kMaxLocation = 200;
constexpr std::size_t kMaxKey = 200;  // torch counts "0", "1", ...; each use hashes the key

[[noreturn]] void fail(const std::string& reason, std::uint64_t offset) {
  throw FormatError("pickle: persistent id: " + reason + " (at " + hex(offset) + ")");
}

std::string_view key_of(const Value& value, std::uint64_t offset) {
  if (!value.is_text()) fail("its key is not a string", offset);
  const std::string_view key = value.as<Blob>().bytes.text();
  if (key.size() > kMaxKey || !is_utf8(ByteSpan(key), Surrogates::refuse)) fail("key " + quote(key), offset);
  return key;
}

bool names_module(const ArenaList<Value>& items) {
  return !items.empty() && items[0].is_text() && items[0].as<Blob>().bytes.text() == "module";
}

const ArenaList<Value>& items_of(const Value& id, std::size_t count, std::uint64_t offset) {
  if (!id.is(Kind::tuple)) fail("not a tuple", offset);
  const auto& items = id.as<Sequence>().items;
  if (items.empty() || !items[0].is_text()) fail("does not begin with a type name", offset);
  const std::string_view type_name = items[0].as<Blob>().bytes.text();
  if (names_module(items)) {
    throw RefusedError("pickle: persistent id of a module (its source file would be read, at " + hex(offset) +
                       ")");
  }
  if (type_name != "storage") fail("of type " + quote(type_name), offset);
  if (items.size() != count) {
    fail(std::to_string(items.size()) + " items instead of " + std::to_string(count), offset);
  }
  return items;
}

}  // namespace

Global* class_of_module(const Value& id) {
  if (!id.is(Kind::tuple)) return nullptr;
  const auto& items = id.as<Sequence>().items;
  return names_module(items) && items.size() == 4 && items[1].is(Kind::global) ? &items[1].as<Global>()
                                                                               : nullptr;
}

Storage& StorageTable::load(Document& document, const Value& id, std::uint64_t offset) {
  const bool with_view = form_ == PersistentId::storage_with_view;
  const auto& items = items_of(id, with_view ? 6 : 5, offset);
  Storage wanted;
  wanted.dtype = &dtype_of(items[1], offset);
  wanted.key = key_of(items[2], offset);
  if (!items[3].is_text()) fail("its location is not a string", offset);
  wanted.location = items[3].as<Blob>().bytes.text();
  if (wanted.location.size() > kMaxLocation || !is_utf8(ByteSpan(wanted.location), Surrogates::refuse)) {
    fail("location " + quote(wanted.location), offset);
  }
  if (!items[4].is(Kind::integer)) fail("its number of elements is not a 64-bit integer", offset);
  wanted.numel = items[4].integer();
  if (!byte_count(wanted.numel, wanted.dtype->size, wanted.nbytes)) {
    fail(std::to_string(wanted.numel) + " elements of " + std::to_string(wanted.dtype->size) + " bytes",
         offset);
  }
  Storage& storage = by_key(document, wanted, offset);
  return with_view && !items[5].is(Kind::none) ? view(document, storage, items[5], offset) : storage;
}

const DType& StorageTable::dtype_of(const Value& type, std::uint64_t offset) const {
  const Global* global = type.is(Kind::global) ? &type.as<Global>() : nullptr;
  if (global != nullptr && global->action == Action::storage_class) return *global->dtype;
  if (global != nullptr && of_script() && global->module == "torch" && global->name.ends_with("Storage")) {
    if (const DType* dtype = dtype_by_script(global->name)) return *dtype;
    throw UnsupportedError("pickle: storages of class " + quote(global->name));
  }
  fail("its second item is not a storage class", offset);
}

// (view key, offset, size)
Storage& StorageTable::view(Document& document, Storage& root, const Value& metadata, std::uint64_t offset) {
  if (!metadata.is(Kind::tuple) || metadata.as<Sequence>().items.size() != 3) {
    fail("its view is not a tuple of three items", offset);
  }
  const auto& items = metadata.as<Sequence>().items;
  if (!items[1].is(Kind::integer) || !items[2].is(Kind::integer))
    fail("its view has items that are not integers", offset);
  const std::int64_t begin = items[1].integer();
  const std::int64_t numel = items[2].integer();
  if (begin < 0 || numel < 0 || begin > root.numel || numel > root.numel - begin) {
    fail("its view exceeds its storage", offset);
  }
  Storage wanted;
  wanted.dtype = root.dtype;
  wanted.key = key_of(items[0], offset);
  wanted.location = root.location;
  wanted.numel = numel;
  wanted.nbytes = static_cast<std::uint64_t>(numel) * root.dtype->size;
  wanted.root = &root;
  wanted.begin = static_cast<std::uint64_t>(begin) * root.dtype->size;
  return by_key(document, wanted, offset);
}

Storage& StorageTable::by_key(Document& document, const Storage& wanted, std::uint64_t offset) {
  const auto [entry, is_new] = by_key_.insert(wanted.key, made_.size());
  if (is_new) made_.push_back(&add(document, wanted));
  Storage& storage = *made_[entry->value];
  if (storage.dtype != wanted.dtype && storage.nbytes == 0 && wanted.nbytes == 0) {
    return add(document, wanted);
  }
  if (storage.dtype != wanted.dtype || storage.numel != wanted.numel || storage.location != wanted.location ||
      storage.root != wanted.root || storage.begin != wanted.begin) {
    fail("storage " + quote(wanted.key) + " is used again with another type, size or location", offset);
  }
  return storage;
}

std::string_view StorageTable::key_in_document(Document& document, std::string_view key) const {
  if (folder_.empty()) return key;
  const std::size_t size = folder_.size() + key.size();
  auto* room = static_cast<char*>(document.arena().allocate(size, 1));
  std::ranges::copy(key, std::ranges::copy(folder_, room).out);
  return {room, size};
}

Storage& StorageTable::add(Document& document, const Storage& wanted) const {
  auto& kin = wanted.root == nullptr ? document.storages : document.views;
  auto& made = document.make<Storage>(Kind::storage);
  made.index = kin.size();
  made.key = key_in_document(document, wanted.key);
  made.location = wanted.location;
  made.dtype = wanted.dtype;
  made.element = wanted.dtype;
  made.numel = wanted.numel;
  made.nbytes = wanted.nbytes;
  made.root = wanted.root;
  made.begin = wanted.begin;
  kin.push_back(&made);
  return made;
}

}  // namespace zerocopy
