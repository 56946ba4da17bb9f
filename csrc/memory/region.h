// Bytes that stay: a range of memory and a share in whatever keeps it alive.
//
// A mapped file, inflated bytes, bytes read in, a Python buffer: each becomes a Region, and a
// Region is the only thing a storage is built over. Copying one shares the owner, never the bytes.
#pragma once

#include "memory/bytes.h"
#include "memory/owner.h"

namespace zerocopy {

class Region {
 public:
  Region() = default;
  Region(std::byte* data, std::size_t size, Share owner) noexcept
      : data_(data), size_(size), owner_(std::move(owner)) {}

  // Fresh memory, not initialised, aligned for any dtype (and for AVX-512 loads).
  static Region allocate(std::size_t size);

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  ByteSpan bytes() const noexcept { return {data_, size_}; }
  const Share& owner() const noexcept { return owner_; }

  // The same owner, fewer bytes. Throws FormatError when the extent leaves the region.
  Region slice(Extent extent) const {
    bytes().subspan(extent);
    return {data_ + extent.offset, static_cast<std::size_t>(extent.size), owner_};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Share owner_;
};

}  // namespace zerocopy
