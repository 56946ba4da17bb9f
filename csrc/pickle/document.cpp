#include "pickle/document.h"

#include <algorithm>

namespace zerocopy {
namespace {

// Of a call's arguments, and of tuples in them: no rebuild function takes more, or deeper.
constexpr std::size_t kLooked = 16;
constexpr int kDepth = 2;

constexpr std::uint64_t kMostOfOne = std::uint64_t{1} << 40U;  // so that no sum of them overflows

bool exceeds(std::uint64_t charged, std::uint64_t times, std::uint64_t held) {
  return charged / times > held;
}

}  // namespace

void Document::charge_rebuild(const Sequence& arguments) {
  for (std::size_t i = 0; i < std::min(arguments.items.size(), kLooked); ++i) {
    charge_argument(arguments.items[i], 0);
  }
}

void Document::charge_argument(const Value& argument, int depth) {
  if (argument.is(Kind::tensor)) {
    const std::uint64_t bytes = std::min(argument.as<Tensor>().storage->nbytes, kMostOfOne);
    walked_ = std::min(walked_ + bytes, std::uint64_t{1} << 62U);
  }
  if (argument.is(Kind::tuple) && depth < kDepth) {
    const auto& items = argument.as<Sequence>().items;
    for (std::size_t i = 0; i < std::min(items.size(), kLooked); ++i) charge_argument(items[i], depth + 1);
  }
  charge_state(argument);
}

void Document::charge_state(const Value& state) {
  if (state.is_mapping()) states_.push_back(&state.as<Mapping>());
}

void Document::settle() const {
  constexpr std::uint64_t kWalks = 64;
  constexpr std::uint64_t kAlways = std::uint64_t{64} << 20U;
  std::uint64_t held = 0;
  for (const Storage* storage : storages) held += std::min(storage->nbytes, kMostOfOne);
  if (walked_ > kAlways && exceeds(walked_ - kAlways, kWalks, held)) {
    throw FormatError("pickle: the same tensors are rebuilt too often");
  }
  constexpr std::uint64_t kSets = 4;
  constexpr std::uint64_t kLeast = 8;  // bytes that an attribute takes in a pickle: its name, its value
  std::uint64_t attributes = 0;
  for (const Mapping* state : states_) attributes += state->items.size();
  if (exceeds(attributes * kLeast, kSets, text_.size())) {
    throw FormatError("pickle: the same state is set too often");
  }
}

}  // namespace zerocopy
