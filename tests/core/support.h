// Helpers of the core tests: bytes written by hand, and sources that are computed.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
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

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

inline std::byte pattern(std::uint64_t offset) {
  return static_cast<std::byte>(offset * 7 + (offset >> 12U));
}

inline TransferOptions transfer_options(unsigned threads) { return {.threads = threads, .on_progress = {}}; }

// Each byte is computed from its offset.
class MadeUpSource final : public Source {
 public:
  explicit MadeUpSource(std::uint64_t size, unsigned threads = 1)
      : Source(transfer_options(threads)), size_(size) {}

  std::uint64_t size() const noexcept override { return size_; }
  void require_unchanged() const override {}
  void require_in_place() const override {}

  mutable std::atomic<int> reads = 0;

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    ++reads;
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = pattern(offset + i);
  }

  std::uint64_t size_;
};

}  // namespace zerocopy::test
