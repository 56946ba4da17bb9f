#include "pickle/document.h"

#include <algorithm>

#include "memory/budget.h"
#include "pickle/geometry.h"

namespace zerocopy {
namespace {

// Limits of the arguments that are inspected. No rebuild function takes more, or deeper tuples.
constexpr std::size_t kLooked = 16;
constexpr int kDepth = 2;

constexpr std::uint64_t kMaxCharge = std::uint64_t{1} << 40U;  // prevents overflow of sums

bool exceeds(std::uint64_t charged, std::uint64_t times, std::uint64_t held) {
  return charged / times > held;
}

}  // namespace

void Document::charge_rebuild(const Global& function, const Sequence& arguments) {
  arguments_.push_back(&arguments);
  if (function.name.starts_with("_rebuild_device_tensor_")) charge_conversion(arguments);
  for (std::size_t i = 0; i < std::min(arguments.items.size(), kLooked); ++i) {
    charge_argument(arguments.items[i], 0);
  }
}

void Document::charge_argument(const Value& argument, int depth) {
  if (argument.is(Kind::tensor)) {
    const std::uint64_t bytes = std::min(argument.as<Tensor>().storage->nbytes, kMaxCharge);
    walked_ = std::min(walked_ + bytes, std::uint64_t{1} << 62U);
  }
  if (argument.is(Kind::tuple) && depth < kDepth) {
    const auto& items = argument.as<Sequence>().items;
    for (std::size_t i = 0; i < std::min(items.size(), kLooked); ++i) charge_argument(items[i], depth + 1);
  }
  charge_state(argument);
}

// (tensor, dtype, ...): a tensor converted to another dtype, which may be sixteen times as wide.
void Document::charge_conversion(const Sequence& arguments) {
  if (arguments.items.size() < 2 || !arguments.items[0].is(Kind::tensor)) return;
  const auto& from = arguments.items[0].as<Tensor>();
  const Value& to = arguments.items[1];
  const DType* dtype = to.is(Kind::global) ? to.as<Global>().dtype : nullptr;
  if (dtype == nullptr || from.dtype->size == 0) return;
  const std::uint64_t numel = std::min(from.storage->nbytes, kMaxCharge) / from.dtype->size;
  converted_ = std::min(converted_ + numel * dtype->size, std::uint64_t{1} << 62U);
}

// Each call inspects a shared tuple again. The visits are bounded as those of keys are.
void Document::require_countable(const Value& argument, int depth, std::uint64_t& visits) const {
  if (argument.is(Kind::big_integer)) throw FormatError("pickle: a tensor has an integer beyond 64 bits");
  const bool is_sequence = argument.is(Kind::tuple) || argument.is(Kind::list);
  if (!is_sequence || depth > kMaxNesting) return;
  const auto& items = argument.as<Sequence>().items;
  visits += items.size();
  constexpr std::uint64_t kVisits = 16;
  if (exceeds(visits, kVisits, text_.size()))
    throw FormatError("pickle: the same arguments are used too often");
  std::size_t integers = 0;
  for (const Value& item : items) {
    if (item.is(Kind::integer)) ++integers;
    require_countable(item, depth + 1, visits);
  }
  if (argument.is(Kind::tuple) && integers > kMaxDimensions) {
    throw FormatError("pickle: a tensor has " + std::to_string(integers) + " dimensions");
  }
}

void Document::charge_state(const Value& state) {
  if (state.is_mapping()) states_.push_back(&state.as<Mapping>());
}

void Document::check_repeated_work() const {
  constexpr std::uint64_t kWalks = 64;
  std::uint64_t held = 0;
  for (const Storage* storage : storages) held += std::min(storage->nbytes, kMaxCharge);
  if (walked_ > fixed_budget_ && exceeds(walked_ - fixed_budget_, kWalks, held)) {
    throw FormatError("pickle: the same tensors are rebuilt too often");
  }
  Budget(text_.size(), "pickle: far more tensors than it spells out", Budget::kTimes, fixed_budget_)
      .charge(made_);
  if (converted_ != 0) {
    Budget(text_.size() + held, "pickle: the same tensors are converted too often", Budget::kTimes,
           fixed_budget_)
        .charge(converted_);
  }
  std::uint64_t visits = 0;
  for (const Sequence* arguments : arguments_) {
    for (const Value& argument : arguments->items) require_countable(argument, 0, visits);
  }
  constexpr std::uint64_t kSets = 4;
  // Bytes that an attribute takes in a pickle: its name and value.
  constexpr std::uint64_t kLeast = 8;
  std::uint64_t attributes = 0;
  for (const Mapping* state : states_) attributes += state->items.size();
  if (exceeds(attributes * kLeast, kSets, text_.size())) {
    throw FormatError("pickle: the same state is set too often");
  }
}

}  // namespace zerocopy
