// The pickle machine's stack with its marks. Values below the last mark cannot be reached.
#pragma once

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

#include "pickle/document.h"

namespace zerocopy {

// The machine adds the offset in the pickle to the message.
class StackError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Stack {
 public:
  void push(const Value& value) {
    if (height_ == values_.size()) grow();
    values_[height_++] = value;
  }

  Value pop() {
    const Value value = top();
    --height_;
    return value;
  }

  const Value& top() const {
    if (reachable() == 0) throw StackError("stack underflow");
    return values_[height_ - 1];
  }

  // Pops the topmost values. The span is valid until the next push.
  std::span<const Value> take(std::size_t count) {
    if (count > reachable()) throw StackError("stack underflow");
    height_ -= count;
    return {values_.data() + height_, count};
  }

  void mark() {
    if (marks_.size() >= kLimit) throw StackError("more than a million marks");
    marks_.push_back(height_);
  }

  bool is_at_mark() const noexcept { return !marks_.empty() && marks_.back() == height_; }

  std::span<const Value> take_since_mark() {
    if (marks_.empty()) throw StackError("no mark on the stack");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return take(height_ - mark);
  }

 private:
  static constexpr std::size_t kLimit = 1'000'000;

  std::size_t reachable() const noexcept { return height_ - (marks_.empty() ? 0 : marks_.back()); }

  void grow() {
    if (height_ >= kLimit) throw StackError("more than a million values on the stack");
    values_.resize(std::min(2 * values_.size(), kLimit));
  }

  // Never shrinks; height_ counts the values in use.
  std::vector<Value> values_ = std::vector<Value>(64);
  std::size_t height_ = 0;
  std::vector<std::size_t> marks_;
};

}  // namespace zerocopy
