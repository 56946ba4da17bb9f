// Hash of a name from a file, keyed by a secret of this process.
//
// std::hash is the same in every process, so a file could carry a million names of one bucket and
// make a lookup quadratic. Without the key nobody can aim.
#pragma once

#include <cstdint>
#include <string_view>

namespace zerocopy {

inline char fold_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::uint64_t hash_key();  // odd, drawn once per process

__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using): __extension__ needs it

struct NameHash {
  std::size_t operator()(std::string_view name) const noexcept {
    return mix(name, [](char c) { return c; });
  }

 protected:
  template <typename Fold>
  static std::size_t mix(std::string_view name, Fold fold) noexcept {
    const std::uint64_t key = hash_key();
    std::uint64_t hash = key ^ name.size();
    for (const char c : name) {
      const auto product = static_cast<Wide>(hash ^ static_cast<unsigned char>(fold(c))) * key;
      hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
    }
    return hash;
  }
};

// The two that compare names as miniz, torch's zip library, does: without ASCII case.
struct FoldedHash : NameHash {
  std::size_t operator()(std::string_view name) const noexcept { return mix(name, fold_ascii); }
};

struct FoldedEqual {
  bool operator()(std::string_view a, std::string_view b) const noexcept {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (fold_ascii(a[i]) != fold_ascii(b[i])) return false;
    }
    return true;
  }
};

}  // namespace zerocopy
