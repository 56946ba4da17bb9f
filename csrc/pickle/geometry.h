// May a tensor of this shape be laid over a storage of that many elements?
//
// torch's own make_tensor checks nothing, and set_() changes the shape before it fails, so the
// question is answered here, before torch sees a number.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace zerocopy {

// torch's kernels take no more (c10::kDimVectorStaticSize and TensorIterator's 64-bit masks).
constexpr std::size_t kMaxDimensions = 64;

// Empty when it may, else why not. All in elements: every size, stride and the offset are >= 0,
// the number of elements and of bytes fit int64 (also when a 0 among the sizes hides it), and the
// last element lies inside the storage.
std::string why_not_a_view(std::int64_t storage_numel, std::int64_t item_size, std::int64_t offset,
                           std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

// nbytes of `numel` elements; false when that is negative or no int64.
bool byte_count(std::int64_t numel, std::int64_t item_size, std::uint64_t& nbytes);

}  // namespace zerocopy
