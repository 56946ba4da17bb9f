#include "memory/errors.h"

#include <array>
#include <cstdio>

namespace zerocopy {
namespace {

constexpr std::size_t kMaxQuoted = 200;

}  // namespace

std::string hex(std::uint64_t value) {
  std::array<char, 2 + 16 + 1> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string quote(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, kMaxQuoted)) {
    if (c >= ' ' && c <= '~' && c != '\\' && c != '\'') {
      quoted += c;
      continue;
    }
    std::array<char, 5> escape{};
    std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned char>(c));
    quoted += escape.data();
  }
  quoted += text.size() > kMaxQuoted ? "'..." : "'";
  return quoted;
}

}  // namespace zerocopy
