// Helpers of the core tests: bytes written by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "io/source.h"

namespace zerocopy::test {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): "N\0"s, for bytes with NUL
using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace)

// Allocates exactly that size, so a sanitizer detects a read past the end.
inline Region region_of(std::string_view bytes) {
  const Region region = Region::allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(region.data(), bytes.data(), bytes.size());
  return region;
}

inline std::shared_ptr<const Source> source_of(std::string_view bytes) {
  return std::make_shared<const MemorySource>(region_of(bytes));
}

template <typename T>
std::string little(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string u16(std::uint64_t value) { return little(static_cast<std::uint16_t>(value)); }
inline std::string u32(std::uint64_t value) { return little(static_cast<std::uint32_t>(value)); }
inline std::string u64(std::uint64_t value) { return little(value); }

}  // namespace zerocopy::test
