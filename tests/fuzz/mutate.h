// Mutations that know a format: blind mutations rarely pass the checks of lengths.
//
// Each function returns the changed input. Input that it cannot parse is mutated blindly.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "checkpoint/archive.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed);

namespace zerocopy::fuzz {

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}

  std::size_t below(std::size_t n) { return n == 0 ? 0 : engine_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::minstd_rand engine_;
};

// libFuzzer's own mutations, with the dictionary.
inline std::string mutate_blindly(std::string bytes) {
  constexpr std::size_t kGrowth = 64;
  const std::size_t size = bytes.size();
  bytes.resize(size + kGrowth);
  // NOLINTNEXTLINE(*-reinterpret-cast): as bytes
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

template <typename T>
std::string little(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

Region copy_of(std::string_view bytes);

std::string mutate_pickle(std::string_view pickle, Dice& dice);
// the pickle of data.pkl, with matching storages
std::string mutate_zip(std::string_view archive, Dice& dice);
std::string mutate_legacy(std::string_view file, Dice& dice);
std::string mutate_stream(std::string_view input, Dice& dice);  // for inflate

// Returns small storages for the object's pickle. Empty if the pickle is refused or needs large
// ones.
std::vector<std::pair<std::string, StorageRequest>> small_storages(std::string_view pickle,
                                                                   PersistentId form);

// Implements LLVMFuzzerCustomMutator. One mutation in eight is blind, to break the format too.
template <typename Mutate>
std::size_t mutate_with(Mutate mutate, std::uint8_t* data, std::size_t size, std::size_t max_size,
                        unsigned seed) {
  Dice dice(seed);
  if (dice.one_in(8)) return LLVMFuzzerMutate(data, size, max_size);
  // NOLINTNEXTLINE(*-reinterpret-cast): as text
  const std::string changed = mutate(std::string_view(reinterpret_cast<const char*>(data), size), dice);
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}

}  // namespace zerocopy::fuzz
