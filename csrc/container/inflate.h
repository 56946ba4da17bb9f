// Raw DEFLATE (RFC 1951), by zlib. No other file uses zlib.
#pragma once

#include "io/source.h"

namespace zerocopy {

// The maximum ratio of DEFLATE (https://zlib.net/zlib_tech.html, "Maximum Compression Factor"). A
// larger claimed size is wrong, and nothing is allocated for it.
constexpr bool inflated_size_is_possible(std::uint64_t deflated, std::uint64_t inflated) {
  constexpr std::uint64_t kMaxRatio = 1032;
  constexpr std::uint64_t kSlack = 64;
  return inflated <= kSlack || (inflated - kSlack) / kMaxRatio <= deflated;
}

// Inflates `deflated` into exactly `size` bytes. Throws FormatError if the stream is broken, has
// another size, or leaves input unused.
Region inflate(const Source& source, Extent deflated, std::uint64_t size);

}  // namespace zerocopy
