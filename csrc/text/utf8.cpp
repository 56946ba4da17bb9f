#include "text/utf8.h"

#include <cstring>

namespace zerocopy {
namespace {

struct Sequence {
  std::size_t length;     // 0: not a first byte
  std::uint32_t payload;  // the bits that the first byte contributes to the code point
  std::uint32_t least;    // smaller code points have a shorter form, so this form is refused
};

Sequence sequence_of(std::uint32_t first) {
  if (first < 0x80) return {1, first, 0};
  if (first >= 0xC0 && first < 0xE0) return {2, first & 0x1FU, 0x80};
  if (first >= 0xE0 && first < 0xF0) return {3, first & 0x0FU, 0x800};
  if (first >= 0xF0 && first < 0xF8) return {4, first & 0x07U, 0x10000};
  return {0, 0, 0};
}

bool is_ascii_word(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return (word & 0x8080808080808080U) == 0;
}

}  // namespace

bool is_utf8(ByteSpan text, Surrogates surrogates) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= sizeof(std::uint64_t) && is_ascii_word(text.data() + at)) {
      at += sizeof(std::uint64_t);
      continue;
    }
    const auto [length, payload, least] = sequence_of(std::to_integer<std::uint32_t>(text[at]));
    if (length == 0 || length > text.size() - at) return false;
    std::uint32_t code = payload;
    for (std::size_t i = 1; i < length; ++i) {
      const auto byte = std::to_integer<std::uint32_t>(text[at + i]);
      if ((byte & 0xC0U) != 0x80U) return false;
      code = (code << 6U) | (byte & 0x3FU);
    }
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (code < least || code > 0x10FFFF) return false;
    if (surrogate && surrogates == Surrogates::refuse) return false;
    at += length;
  }
  return true;
}

}  // namespace zerocopy
