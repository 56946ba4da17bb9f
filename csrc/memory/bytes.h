// Extent is a range of a file, and ByteSpan a view of bytes in memory. All parsers use both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/errors.h"

namespace zerocopy {

// A range of a file. Call fits() to check that the range lies inside the file.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;

  // Compares by subtraction: offset and size may come from a hostile file, and their sum may wrap.
  bool fits(std::uint64_t whole) const noexcept { return offset <= whole && size <= whole - offset; }
  bool operator==(const Extent&) const = default;
};

// A view of bytes that another object owns.
class ByteSpan {
 public:
  ByteSpan() = default;
  ByteSpan(const std::byte* data, std::size_t size) noexcept : data_(data), size_(size) {}
  explicit ByteSpan(std::string_view text) noexcept
      : data_(reinterpret_cast<const std::byte*>(text.data())),  // NOLINT: ... or as bytes
        size_(text.size()) {}

  const std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::byte operator[](std::size_t i) const noexcept { return data_[i]; }

  ByteSpan subspan(Extent extent) const {
    if (!extent.fits(size_)) {
      throw FormatError("range of " + std::to_string(extent.size) + " bytes at " + hex(extent.offset) +
                        " runs past the " + std::to_string(size_) + " bytes available");
    }
    return {data_ + extent.offset, static_cast<std::size_t>(extent.size)};
  }

  std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(data_), size_};  // NOLINT: any object may be read as chars
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace zerocopy
