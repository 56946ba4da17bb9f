// A bound on the bytes made from a file: a fixed amount, plus a multiple of the file's size.
//
// A few bytes of a hostile file can ask for the same object again and again. Each place that makes
// objects from a file charges their bytes here first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "memory/errors.h"

namespace zerocopy {

class Budget {
 public:
  static constexpr std::uint64_t kFixed = std::uint64_t{64} << 20U;
  static constexpr std::uint64_t kTimes = 20;

  // The budget throws FormatError with `message` for a file that asks for more.
  Budget(std::uint64_t file_size, std::string message, std::uint64_t times = kTimes,
         std::uint64_t fixed = kFixed)
      : left_(fixed + times * std::min(file_size, kMaxSize)), message_(std::move(message)) {}

  // Takes the bytes from the budget. Returns false, and takes none, if they exceed it.
  bool take(std::uint64_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

  // Returns the share of kFixed for one file of `part` bytes in a checkpoint of `whole` bytes.
  static std::uint64_t fixed_part(std::uint64_t part, std::uint64_t whole) noexcept {
    if (part >= whole) return kFixed;
    return static_cast<std::uint64_t>(static_cast<double>(kFixed) * static_cast<double>(part) /
                                      static_cast<double>(whole));
  }

  void charge(std::uint64_t bytes) {
    if (!take(bytes)) throw FormatError(message_);
  }

 private:
  static constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 56U;  // the product fits 64 bits

  std::uint64_t left_;
  std::string message_;
};

}  // namespace zerocopy
