// A range of memory and a reference to its owner, which keeps the memory alive.
//
// Mapped files, inflated records, read bytes and Python buffers all become Regions. Storages are
// built only over Regions. Copies of a Region share the owner and the bytes.
#pragma once

#include "memory/bytes.h"
#include "memory/owner.h"

namespace zerocopy {

class Region {
 public:
  Region() = default;
  Region(std::byte* data, std::size_t size, OwnerRef owner) noexcept
      : data_(data), size_(size), owner_(std::move(owner)) {}

  // Allocates uninitialised memory, aligned for any dtype and for AVX-512 loads.
  static Region allocate(std::size_t size);

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  ByteSpan bytes() const noexcept { return {data_, size_}; }
  const OwnerRef& owner() const noexcept { return owner_; }

  // Returns a part with the same owner. Throws FormatError when the extent exceeds the region.
  Region slice(Extent extent) const {
    bytes().subspan(extent);
    return {data_ + extent.offset, static_cast<std::size_t>(extent.size), owner_};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  OwnerRef owner_;
};

}  // namespace zerocopy
