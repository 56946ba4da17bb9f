// Hash of a name from a file, keyed by a random number of this process.
//
// std::hash is the same in every process. So a file could hold a million names with equal hashes,
// and make lookups quadratic. The key prevents such collisions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace zerocopy {

inline char fold_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::uint64_t hash_key();  // odd, drawn once per process

__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using): __extension__ needs it

// Eight characters at a time, because compilers do not vectorize the plain loop.
using Characters = std::uint64_t;

// Converts ASCII capitals to lower case in each byte.
inline Characters fold_ascii(Characters eight) {
  constexpr Characters kOnes = 0x0101'0101'0101'0101;
  const Characters low = eight & (0x7f * kOnes);
  const Characters from_a = low + (0x80 - 'A') * kOnes;
  const Characters beyond_z = low + (0x7f - 'Z') * kOnes;
  return eight | (((from_a ^ beyond_z) & ~eight & (0x80 * kOnes)) >> 2U);
}

struct NameHash {
  std::size_t operator()(std::string_view name) const noexcept {
    return mix(name, [](Characters eight) { return eight; });
  }

 protected:
  template <typename Fold>
  static std::size_t mix(std::string_view name, Fold fold) noexcept {
    const std::uint64_t key = hash_key();
    std::uint64_t hash = key ^ name.size();
    while (!name.empty()) {
      Characters eight = 0;
      const std::size_t size = std::min(name.size(), sizeof(eight));
      std::memcpy(&eight, name.data(), size);
      name.remove_prefix(size);
      const auto product = static_cast<Wide>(hash ^ fold(eight)) * key;
      hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
    }
    return hash;
  }
};

// FoldedHash and FoldedEqual ignore ASCII case, as miniz (torch's zip library) does.
struct FoldedHash : NameHash {
  std::size_t operator()(std::string_view name) const noexcept {
    return mix(name, [](Characters eight) { return fold_ascii(eight); });
  }
};

struct FoldedEqual {
  bool operator()(std::string_view a, std::string_view b) const noexcept {
    if (a.size() != b.size()) return false;
    if (a == b) return true;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (fold_ascii(a[i]) != fold_ascii(b[i])) return false;
    }
    return true;
  }
};

}  // namespace zerocopy
