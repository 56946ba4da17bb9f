// Raw DEFLATE (RFC 1951), by zlib: the only place that knows it.
#pragma once

#include "io/source.h"

namespace zerocopy {

// DEFLATE cannot expand further than this (https://zlib.net/zlib_tech.html, "Maximum Compression
// Factor"), so a directory that claims more is lying and nothing is allocated for it.
constexpr bool inflated_size_is_possible(std::uint64_t deflated, std::uint64_t inflated) {
  constexpr std::uint64_t kMaxRatio = 1032;
  constexpr std::uint64_t kSlack = 64;
  return inflated <= kSlack || (inflated - kSlack) / kMaxRatio <= deflated;
}

// Inflates `deflated` into exactly `size` bytes. Throws FormatError when the stream is broken,
// gives more or fewer bytes, or does not use all of its input.
Region inflate(const Source& source, Extent deflated, std::uint64_t size);

}  // namespace zerocopy
