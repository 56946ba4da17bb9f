// A hash table from names to small numbers, in two blocks of memory.
//
// Names are views of bytes that outlive the table. The hash is keyed (name_hash.h), so a file
// cannot provoke collisions. std::unordered_map allocates each entry; that took nearly a third of
// the instructions needed to find a checkpoint's storages.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "text/name_hash.h"

namespace zerocopy {

template <typename Hash, typename Equal = std::equal_to<std::string_view>>
class NameTable {
 public:
  struct Entry {
    std::string_view name;
    std::size_t value = 0;
  };

  explicit NameTable(std::size_t expected = 0) : slots_(std::bit_ceil(2 * expected + 16)) {
    entries_.reserve(expected);
  }

  // Returns the entry of the name, new or old. The pointer is valid until the next insert. `second`
  // is true if the entry is new.
  std::pair<const Entry*, bool> insert(std::string_view name, std::size_t value) {
    if (2 * entries_.size() >= slots_.size()) grow();
    const auto hash = static_cast<std::uint32_t>(Hash()(name));
    Slot& slot = slots_[slot_of(hash, name)];
    if (slot.number != 0) return {&entries_[slot.number - 1], false};
    entries_.push_back({name, value});
    slot = {hash, static_cast<std::uint32_t>(entries_.size())};
    return {&entries_.back(), true};
  }

  const Entry* find(std::string_view name) const {
    const Slot& slot = slots_[slot_of(static_cast<std::uint32_t>(Hash()(name)), name)];
    return slot.number == 0 ? nullptr : &entries_[slot.number - 1];
  }

 private:
  // Slots are small, since at least half of them are empty. A file has fewer than 2^32 names.
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t number = 0;  // of the entry, from 1
  };

  // Returns the slot of the name, or the free slot where it belongs. At most half of the slots are
  // used.
  std::size_t slot_of(std::uint32_t hash, std::string_view name) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    while (slots_[at].number != 0 &&
           (slots_[at].hash != hash || !Equal()(entries_[slots_[at].number - 1].name, name))) {
      at = (at + 1) & mask;
    }
    return at;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.number == 0) continue;
      std::size_t at = slot.hash & mask;
      while (slots_[at].number != 0) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<Entry> entries_;  // in order of insertion
};

}  // namespace zerocopy
