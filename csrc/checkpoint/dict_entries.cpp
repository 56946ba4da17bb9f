#include "checkpoint/dict_entries.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <string>
#include <unordered_map>

#include "text/name_hash.h"
#include "text/name_table.h"

namespace zerocopy {
namespace {

// Longer texts in tuples are compared by length and keyed hash.
constexpr std::size_t kLongText = 64;

std::string identity(const Value& key);

std::string number(double real, const Value& key) {
  constexpr double kLimit = 9223372036854775808.0;                        // 2^63
  if (std::isnan(real)) return "nan " + std::to_string(key.node().slot);  // NaN equals only itself
  if (real >= -kLimit && real < kLimit && std::trunc(real) == real)
    return "integer " + std::to_string(static_cast<std::int64_t>(real));
  return "real " + std::to_string(std::bit_cast<std::uint64_t>(real));
}

std::string text(std::string_view bytes) {
  std::string made = std::to_string(bytes.size()) + ":";
  if (bytes.size() <= kLongText) return made.append(bytes);
  return made + "#" + std::to_string(NameHash()(bytes));
}

std::string parts(const Sequence& sequence, bool sorted) {
  std::vector<std::string> all;
  for (const Value& item : sequence.items) all.push_back(text(identity(item)));
  if (sorted) std::ranges::sort(all);
  std::string joined;
  for (const std::string& part : all) joined += part;
  return joined;
}

// Returns equal strings for keys that are equal in Python. check_key bounds a key's size.
std::string identity(const Value& key) {
  switch (key.kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return key.boolean() ? "integer 1" : "integer 0";
    case Kind::integer:
      return "integer " + std::to_string(key.integer());
    case Kind::real:
      return number(key.as<Real>().number, key);
    case Kind::complex: {
      const auto& complex = key.as<Complex>();
      if (complex.imaginary == 0) return number(complex.real, key);
      return "complex " + number(complex.real, key) + " " + number(complex.imaginary, key);
    }
    case Kind::text:
    case Kind::byte_string:
      return "text " + text(key.as<Blob>().bytes.text());
    case Kind::bytes:
      return "bytes " + text(key.as<Blob>().bytes.text());
    case Kind::big_integer:
      return "big " + text(key.as<Blob>().bytes.text());
    case Kind::tuple:
    case Kind::size:
      return "tuple " + parts(key.as<Sequence>(), false);
    case Kind::frozenset:
      return "frozenset " + parts(key.as<Sequence>(), true);
    case Kind::device:
      return "device " + text(key.as<Device>().type) + identity(key.as<Device>().index);
    case Kind::global:
      if (key.as<Global>().action == Action::dtype)
        return "dtype " + std::string(key.as<Global>().dtype->name);
      return "global " + text(key.as<Global>().module) + text(key.as<Global>().name);
    default:  // only the class could compare
      return "object " + std::to_string(key.node().slot);
  }
}

std::vector<Mapping::Item> merged(const ArenaList<Mapping::Item>& items) {
  std::vector<Mapping::Item> entries;
  NameTable<NameHash> texts;
  NameTable<NameHash> others;
  std::deque<std::string> kept;
  // A pickle can give one long text as a key again and again: it is hashed once.
  std::unordered_map<const Node*, std::size_t> long_texts;
  for (const Mapping::Item& item : items) {
    const bool is_text = item.key.is_text();
    const std::string_view name =
        is_text ? item.key.as<Blob>().bytes.text() : kept.emplace_back(identity(item.key));
    if (is_text && name.size() > kLongText) {
      const auto [known, is_first] = long_texts.try_emplace(&item.key.node(), entries.size());
      if (!is_first) {
        entries[known->second].value = item.value;
        continue;
      }
      const auto* same = texts.find(name);
      if (same != nullptr) known->second = same->value;
    }
    const auto [entry, is_new] = (is_text ? texts : others).insert(name, entries.size());
    if (is_new) {
      entries.push_back(item);
    } else {
      entries[entry->value].value = item.value;
    }
  }
  return entries;
}

// Returns false only if no two keys are equal. Keys other than strings may be equal.
bool may_have_equal_keys(const ArenaList<Mapping::Item>& items) {
  if (items.size() < 2) return false;
  std::vector<std::uint32_t> hashes(std::bit_ceil(2 * items.size()));  // 0 is a free place
  for (const Mapping::Item& item : items) {
    if (!item.key.is_text()) return true;
    const auto hash = static_cast<std::uint32_t>(NameHash()(item.key.as<Blob>().bytes.text())) | 1U;
    std::size_t at = (hash >> 1U) & (hashes.size() - 1);
    for (; hashes[at] != 0; at = (at + 1) & (hashes.size() - 1)) {
      if (hashes[at] == hash) return true;
    }
    hashes[at] = hash;
  }
  return false;
}

}  // namespace

DictEntries::DictEntries(const Mapping& mapping) : entries_(mapping.items.begin(), mapping.items.end()) {
  if (!may_have_equal_keys(mapping.items)) return;
  merged_ = merged(mapping.items);
  entries_ = merged_;
}

}  // namespace zerocopy
