// From names to small numbers: a hash table in one block of memory.
//
// Names are views of bytes that outlive the table. The hash is keyed (name_hash.h), so that a file
// cannot aim at one bucket; there is no allocation an entry, which for std::unordered_map was
// nearly a third of the instructions of finding a checkpoint's storages.
#pragma once

#include <bit>
#include <optional>
#include <vector>

#include "memory/name_hash.h"

namespace zerocopy {

template <typename Hash, typename Equal = std::equal_to<std::string_view>>
class NameTable {
 public:
  struct Entry {
    std::string_view name;
    std::size_t value = 0;
  };

  explicit NameTable(std::size_t expected = 0) : slots_(std::bit_ceil(2 * expected + 16)) {}

  // The entry of that name, new or old; `second` says whether it is new.
  std::pair<Entry*, bool> insert(std::string_view name, std::size_t value) {
    if (2 * size_ >= slots_.size()) grow();
    Entry& entry = slots_[slot_of(name)];
    if (entry.name.data() != nullptr) return {&entry, false};
    entry = {name, value};
    ++size_;
    return {&entry, true};
  }

  const Entry* find(std::string_view name) const {
    const Entry& entry = slots_[slot_of(name)];
    return entry.name.data() == nullptr ? nullptr : &entry;
  }

 private:
  // Where the name is, or the free slot where it belongs. At most half of the slots are used.
  std::size_t slot_of(std::string_view name) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = Hash()(name) & mask;
    while (slots_[slot].name.data() != nullptr && !Equal()(slots_[slot].name, name)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void grow() {
    std::vector<Entry> old(2 * slots_.size());
    old.swap(slots_);
    for (const Entry& entry : old) {
      if (entry.name.data() != nullptr) slots_[slot_of(entry.name)] = entry;
    }
  }

  std::vector<Entry> slots_;
  std::size_t size_ = 0;
};

}  // namespace zerocopy
