// May a tensor of this shape be laid over a storage of that many elements?
//
// torch's own make_tensor checks nothing, and set_() changes the shape before it fails, so the
// question is answered here, before torch sees a number.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "memory/bytes.h"

namespace zerocopy {

// torch's kernels take no more (c10::kDimVectorStaticSize and TensorIterator's 64-bit masks).
constexpr std::size_t kMaxDimensions = 64;

// Empty when it may, else why not. All in elements: every size, stride and the offset are >= 0,
// the number of elements and of bytes fit int64 (also when a 0 among the sizes hides it), and the
// last element lies inside the storage.
std::string why_not_a_view(std::int64_t storage_numel, std::int64_t item_size, std::int64_t offset,
                           std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

// How many elements lie from the first of a view to its last, both with it; 0 for an empty one. For views
// that may be.
std::int64_t span_of(std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

// Calls with each run of bytes of such a view, from its first element on; not at all where there are more
// than are worth it.
template <typename Call>
void for_each_run(std::span<const std::int64_t> size, std::span<const std::int64_t> stride,
                  std::int64_t item_size, const Call& call) {
  constexpr std::int64_t kMostRuns = 4096;
  if (span_of(size, stride) == 0) return;
  std::int64_t run = 1;
  std::size_t outer = size.size();
  while (outer > 0 && (stride[outer - 1] == run || size[outer - 1] == 1)) run *= size[--outer];
  std::int64_t runs = 1;
  for (const std::int64_t n : size.first(outer)) {
    if (n > kMostRuns / runs) return;
    runs *= n;
  }
  for (std::int64_t n = 0; n < runs; ++n) {
    std::int64_t begin = 0;
    std::int64_t rest = n;
    for (std::size_t i = outer; i-- > 0; rest /= size[i]) begin += rest % size[i] * stride[i];
    call(Extent{static_cast<std::uint64_t>(begin * item_size), static_cast<std::uint64_t>(run * item_size)});
  }
}

// nbytes of `numel` elements; false when that is negative or no int64.
bool byte_count(std::int64_t numel, std::int64_t item_size, std::uint64_t& nbytes);

}  // namespace zerocopy
