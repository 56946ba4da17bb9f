#include "text/name_hash.h"

#include <random>

namespace zerocopy {

std::uint64_t hash_key() {
  static const std::uint64_t key = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32U) | device() | 1U;
  }();
  return key;
}

}  // namespace zerocopy
