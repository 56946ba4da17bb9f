#include "container/archive_identifier.h"

#include <bit>

namespace zerocopy {
namespace {

constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98U, 0x71374491U, 0xb5c0fbcfU, 0xe9b5dba5U, 0x3956c25bU, 0x59f111f1U, 0x923f82a4U, 0xab1c5ed5U,
    0xd807aa98U, 0x12835b01U, 0x243185beU, 0x550c7dc3U, 0x72be5d74U, 0x80deb1feU, 0x9bdc06a7U, 0xc19bf174U,
    0xe49b69c1U, 0xefbe4786U, 0x0fc19dc6U, 0x240ca1ccU, 0x2de92c6fU, 0x4a7484aaU, 0x5cb0a9dcU, 0x76f988daU,
    0x983e5152U, 0xa831c66dU, 0xb00327c8U, 0xbf597fc7U, 0xc6e00bf3U, 0xd5a79147U, 0x06ca6351U, 0x14292967U,
    0x27b70a85U, 0x2e1b2138U, 0x4d2c6dfcU, 0x53380d13U, 0x650a7354U, 0x766a0abbU, 0x81c2c92eU, 0x92722c85U,
    0xa2bfe8a1U, 0xa81a664bU, 0xc24b8b70U, 0xc76c51a3U, 0xd192e819U, 0xd6990624U, 0xf40e3585U, 0x106aa070U,
    0x19a4c116U, 0x1e376c08U, 0x2748774cU, 0x34b0bcb5U, 0x391c0cb3U, 0x4ed8aa4aU, 0x5b9cca4fU, 0x682e6ff3U,
    0x748f82eeU, 0x78a5636fU, 0x84c87814U, 0x8cc70208U, 0x90befffaU, 0xa4506cebU, 0xbef9a3f7U, 0xc67178f2U};

std::uint32_t small(std::uint32_t word, int first, int second, unsigned shift) noexcept {
  return std::rotr(word, first) ^ std::rotr(word, second) ^ (word >> shift);
}

std::uint32_t large(std::uint32_t word, int first, int second, int third) noexcept {
  return std::rotr(word, first) ^ std::rotr(word, second) ^ std::rotr(word, third);
}

}  // namespace

void Sha256::update(ByteSpan bytes) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    block_[size_ % block_.size()] = static_cast<std::uint8_t>(bytes[i]);
    if (++size_ % block_.size() == 0) mix();
  }
}

std::array<std::uint8_t, 32> Sha256::digest() noexcept {
  const std::uint64_t bits = size_ * 8;
  std::byte next{0x80};
  do {
    update({&next, 1});
    next = std::byte{0};
  } while (size_ % block_.size() != block_.size() - sizeof bits);
  for (unsigned i = 0; i < sizeof bits; ++i) {
    const auto byte = static_cast<std::byte>(bits >> (56U - 8U * i));
    update({&byte, 1});
  }
  std::array<std::uint8_t, 32> made{};
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24U - 8U * (i % 4)));
  }
  return made;
}

void Sha256::mix() noexcept {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 4; ++j) words[i] = words[i] << 8U | block_[4 * i + j];
  }
  for (std::size_t i = 16; i < words.size(); ++i) {
    words[i] =
        words[i - 16] + small(words[i - 15], 7, 18, 3) + words[i - 7] + small(words[i - 2], 17, 19, 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::uint32_t first = h + large(e, 6, 11, 25) + ((e & f) ^ (~e & g)) + kRound[i] + words[i];
    const std::uint32_t second = large(a, 2, 13, 22) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += mixed[i];
}

std::array<char, kIdentifierDigits> digits_of(std::array<std::uint8_t, 32> digest) noexcept {
  std::array<char, kIdentifierDigits> digits{};
  for (std::size_t i = digits.size(); i-- > 0;) {
    unsigned rest = 0;
    for (std::size_t j = digest.size(); j-- > 0;) {
      const unsigned value = rest * 256 + digest[j];
      digest[j] = static_cast<std::uint8_t>(value / 10);
      rest = value % 10;
    }
    digits[i] = static_cast<char>('0' + rest);
  }
  return digits;
}

}  // namespace zerocopy
