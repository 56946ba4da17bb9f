// Reads a ByteSpan from front to back. Every read is checked. A read that throws does not move the
// cursor.
#pragma once

#include <bit>
#include <concepts>
#include <cstring>

#include "memory/bytes.h"

namespace zerocopy {

static_assert(std::endian::native == std::endian::little,
              "values are loaded with memcpy: a big-endian machine needs byte swaps here");

class Cursor {
 public:
  // `what` names the structure in error messages. The string must outlive the cursor.
  Cursor(ByteSpan bytes, const char* what) noexcept : bytes_(bytes), what_(what) {}

  std::size_t offset() const noexcept { return offset_; }
  std::size_t remaining() const noexcept { return bytes_.size() - offset_; }

  // Reads a little-endian unsigned integer. The bytes may be unaligned, hence memcpy.
  template <std::unsigned_integral T>
  T read() {
    require(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }

  ByteSpan take(std::uint64_t size) {
    require(size);
    const ByteSpan taken(bytes_.data() + offset_, static_cast<std::size_t>(size));
    offset_ += static_cast<std::size_t>(size);
    return taken;
  }

  void skip(std::uint64_t size) { take(size); }

  // Returns the bytes before `end`, and consumes `end` too.
  ByteSpan take_until(std::byte end) {
    const void* found =
        remaining() == 0 ? nullptr : std::memchr(bytes_.data() + offset_, static_cast<int>(end), remaining());
    if (found == nullptr) {
      throw TruncatedError(std::string(what_) + ": truncated at " + hex(offset_) +
                           ": expected the end of a line");
    }
    const auto size =
        static_cast<std::size_t>(static_cast<const std::byte*>(found) - (bytes_.data() + offset_));
    const ByteSpan taken(bytes_.data() + offset_, size);
    offset_ += size + 1;
    return taken;
  }

 private:
  void require(std::uint64_t size) const {
    if (size > remaining()) fail(size);
  }

  // Not inline, so that code for messages does not slow down each read.
  [[noreturn]] void fail(std::uint64_t size) const;

  ByteSpan bytes_;
  std::size_t offset_ = 0;
  const char* what_;
};

}  // namespace zerocopy
