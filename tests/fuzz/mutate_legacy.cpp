#include <array>

#include "mutate.h"
#include "pickle/opcode.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::size_t kObject = 3;  // magic, version, sys_info, the object, keys
constexpr std::size_t kKeys = 4;

std::string keys_pickle(const std::vector<std::pair<std::string, StorageRequest>>& storages) {
  std::string pickle = "\x80\2](";
  for (const auto& [key, wanted] : storages) {
    pickle += "X" + little(static_cast<std::uint32_t>(key.size())) + key;
  }
  return pickle + "e.";
}

}  // namespace

std::string mutate_legacy(std::string_view file, Dice& dice) {
  std::array<std::string, kKeys + 2> parts;  // the last part is the data
  std::string_view rest = file;
  try {
    for (std::size_t i = 0; i <= kKeys; ++i) {
      const std::size_t size = pickle_size(ByteSpan(rest));
      parts[i] = rest.substr(0, size);
      rest.remove_prefix(size);
    }
  } catch (const FormatError&) {
    return mutate_blindly(std::string(file));
  }
  parts.back() = rest;

  const std::size_t i = dice.one_in(2) ? kObject : dice.below(parts.size());
  parts[i] = i == parts.size() - 1 ? mutate_blindly(parts[i]) : mutate_pickle(parts[i], dice);
  if (i == kObject && !dice.one_in(3)) {  // with matching keys and data
    const auto storages = small_storages(parts[kObject], PersistentId::storage_with_view);
    parts[kKeys] = keys_pickle(storages);
    parts.back().clear();
    for (const auto& [key, wanted] : storages) {
      parts.back() += little(wanted.nbytes / wanted.dtype->size) + std::string(wanted.nbytes, 'd');
    }
  }
  std::string changed;
  for (const std::string& part : parts) changed += part;
  return changed;
}

}  // namespace zerocopy::fuzz
