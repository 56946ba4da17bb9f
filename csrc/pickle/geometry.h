// Checks a tensor's shape against its storage.
//
// torch's make_tensor checks nothing, and set_() changes the shape before it fails. So zerocopy
// checks before torch sees a number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "memory/bytes.h"

namespace zerocopy {

// The limit of torch's kernels (c10::kDimVectorStaticSize and TensorIterator's 64-bit masks).
constexpr std::size_t kMaxDimensions = 64;

// Returns an empty string if the view is valid, else the reason. All numbers count elements. Sizes,
// strides and the offset are >= 0, and the last element lies inside the storage. Element and byte
// counts fit int64, even if a size of 0 hides an overflow.
std::string why_not_a_view(std::int64_t storage_numel, std::int64_t item_size, std::int64_t offset,
                           std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

// Returns the number of elements from the first to the last of a valid view, inclusive; 0 if empty.
std::int64_t span_of(std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

// Returns the strides of elements that lie one after the other.
std::vector<std::int64_t> contiguous_strides(std::span<const std::int64_t> size);

// Calls `call` with each contiguous run of bytes of a view, from its first element. Does nothing if
// the runs are too many.
template <typename Call>
void for_each_run(std::span<const std::int64_t> size, std::span<const std::int64_t> stride,
                  std::int64_t item_size, const Call& call) {
  constexpr std::int64_t kMaxRuns = 4096;
  if (span_of(size, stride) == 0) return;
  std::int64_t run = 1;
  std::size_t outer = size.size();
  while (outer > 0 && (stride[outer - 1] == run || size[outer - 1] == 1)) run *= size[--outer];
  std::int64_t runs = 1;
  for (const std::int64_t n : size.first(outer)) {
    if (n > kMaxRuns / runs) return;
    runs *= n;
  }
  for (std::int64_t n = 0; n < runs; ++n) {
    std::int64_t begin = 0;
    std::int64_t rest = n;
    for (std::size_t i = outer; i-- > 0; rest /= size[i]) begin += rest % size[i] * stride[i];
    call(Extent{static_cast<std::uint64_t>(begin * item_size), static_cast<std::uint64_t>(run * item_size)});
  }
}

// Computes the bytes of `numel` elements. Returns false if the result is negative or overflows
// int64.
bool byte_count(std::int64_t numel, std::int64_t item_size, std::uint64_t& nbytes);

}  // namespace zerocopy
