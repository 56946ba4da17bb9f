// Shared by the fuzz targets: bytes in memory of exactly their size, and the definition of a finding.
//
// An Error is an answer. Anything else that leaves a target is a finding: another exception, a
// sanitizer's report, a property that check() finds broken, memory or time beyond a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "io/source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace zerocopy::fuzz {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

// So that a sanitizer sees the first byte read behind it.
inline Region region_of(const std::uint8_t* data, std::size_t size) {
  const Region region = Region::allocate(size);
  if (size != 0) std::memcpy(region.data(), data, size);
  return region;
}

inline std::shared_ptr<const Source> source_of(const std::uint8_t* data, std::size_t size) {
  return std::make_shared<const MemorySource>(region_of(data, size));
}

[[noreturn]] inline void violated(const char* property) {
  std::fprintf(stderr, "violated: %s\n", property);
  std::abort();
}

inline void check(bool holds, const char* property) {
  if (!holds) violated(property);
}

// Whether the body ends without an Error.
template <typename Body>
bool succeeds(Body body) {
  try {
    body();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// While it lives, C++ code that has more than `bytes` more than now is a finding (meter.cpp). Sharper than
// the fuzzer's own limit, which has to leave room for the fuzzer, and good with any compiler.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t bytes) noexcept;
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();
};

// The same for time, of the processor and not of the clock on the wall: 0.2 s and 10 us a byte, which honest
// input stays far below, under sanitizers too. While fuzzing only: no test depends on a clock.
class TimeLimit {
 public:
  explicit TimeLimit(std::size_t size) noexcept
      : until_(std::clock() + CLOCKS_PER_SEC / 5 +
               static_cast<std::clock_t>(size) * CLOCKS_PER_SEC / 100'000) {}
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  ~TimeLimit() {
#ifdef ZEROCOPY_FUZZING
    check(std::clock() <= until_, "time in proportion to the input");
#endif
  }

 private:
  std::clock_t until_;
};

}  // namespace zerocopy::fuzz
