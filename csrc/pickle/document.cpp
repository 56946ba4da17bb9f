#include "pickle/document.h"

#include <algorithm>

namespace zerocopy {
namespace {

// Of a call's arguments, and of tuples in them: no rebuild function takes more, or deeper.
constexpr std::size_t kLooked = 16;
constexpr int kDepth = 2;

constexpr std::uint64_t kWalks = 64;
constexpr std::uint64_t kAlways = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMostOfOne = std::uint64_t{1} << 40U;  // so that no sum of them overflows

}  // namespace

std::uint64_t Document::tensor_bytes(const Sequence& arguments, int depth) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < std::min(arguments.items.size(), kLooked); ++i) {
    const Value& argument = arguments.items[i];
    if (argument.is(Kind::tensor)) bytes += std::min(argument.as<Tensor>().storage->nbytes, kMostOfOne);
    if (argument.is(Kind::tuple) && depth < kDepth) bytes += tensor_bytes(argument.as<Sequence>(), depth + 1);
  }
  return bytes;
}

void Document::charge_walk(const Sequence& arguments) {
  walked_ = std::min(walked_ + tensor_bytes(arguments, 0), std::uint64_t{1} << 62U);
}

void Document::settle_walks() const {
  std::uint64_t held = 0;
  for (const Storage* storage : storages) held += std::min(storage->nbytes, kMostOfOne);
  if (walked_ > kAlways && (walked_ - kAlways) / kWalks > held) {
    throw FormatError("pickle: the same tensors are rebuilt too often");
  }
}

}  // namespace zerocopy
