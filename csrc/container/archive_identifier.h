// The number that torch logs for an archive, computed from its content: the SHA-256 (FIPS 180-4) of
// a text about its records, modulo 10^40. These functions do not allocate or throw.
#pragma once

#include <array>
#include <cstdint>

#include "memory/bytes.h"

namespace zerocopy {

class Sha256 {
 public:
  void update(ByteSpan bytes) noexcept;
  std::array<std::uint8_t, 32> digest() noexcept;

 private:
  void mix() noexcept;

  std::array<std::uint32_t, 8> state_{0x6a09e667U, 0xbb67ae85U, 0x3c6ef372U, 0xa54ff53aU,
                                      0x510e527fU, 0x9b05688cU, 0x1f83d9abU, 0x5be0cd19U};
  std::array<std::uint8_t, 64> block_{};
  std::uint64_t size_ = 0;
};

constexpr std::size_t kIdentifierDigits = 40;

// Returns the last decimal digits of a digest, read as a little-endian number.
std::array<char, kIdentifierDigits> digits_of(std::array<std::uint8_t, 32> digest) noexcept;

}  // namespace zerocopy
