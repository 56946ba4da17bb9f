// Helpers of the fuzz targets: memory of exact size, and checks.
//
// An Error is a valid result. All else is a finding: another exception, a sanitizer's report, a
// failed check(), or too much memory or time.
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

// Allocates exactly that size, so a sanitizer detects a read past the end.
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

// Returns whether the body ends without an Error.
template <typename Body>
bool succeeds(Body body) {
  try {
    body();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Limits the memory that C++ code allocates during its lifetime (meter.cpp). It is stricter than
// the fuzzer's own limit, which includes the fuzzer, and works with any compiler.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t bytes) noexcept;
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit();
};

// Limits processor time to 0.2 s plus 10 us per byte, far above honest input, even with sanitizers.
// Active only while fuzzing, since tests do not depend on time.
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
