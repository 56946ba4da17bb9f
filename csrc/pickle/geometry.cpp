#include "pickle/geometry.h"

#include <algorithm>

namespace zerocopy {

std::int64_t span_of(std::span<const std::int64_t> size, std::span<const std::int64_t> stride) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return 0;
    last += (size[i] - 1) * stride[i];
  }
  return last + 1;
}

bool byte_count(std::int64_t numel, std::int64_t item_size, std::uint64_t& nbytes) {
  std::int64_t product = 0;
  if (numel < 0 || __builtin_mul_overflow(numel, item_size, &product)) return false;
  nbytes = static_cast<std::uint64_t>(product);
  return true;
}

std::string why_not_a_view(std::int64_t storage_numel, std::int64_t item_size, std::int64_t offset,
                           std::span<const std::int64_t> size, std::span<const std::int64_t> stride) {
  if (size.size() != stride.size()) {
    return std::to_string(size.size()) + " sizes and " + std::to_string(stride.size()) + " strides";
  }
  if (size.size() > kMaxDimensions) return std::to_string(size.size()) + " dimensions";
  const auto negative = [](std::int64_t n) { return n < 0; };
  if (offset < 0 || std::ranges::any_of(size, negative) || std::ranges::any_of(stride, negative)) {
    return "a negative size, stride or offset";
  }

  std::int64_t numel = 1;  // ignores zeros, since 0 x 2^124 elements is invalid too
  std::int64_t last = offset;
  bool empty = false;
  bool overflows = false;
  for (std::size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) {
      empty = true;
      continue;
    }
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(numel, size[i], &numel)) return "sizes that overflow";
    overflows = overflows || __builtin_mul_overflow(size[i] - 1, stride[i], &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  std::uint64_t nbytes = 0;
  if (!byte_count(numel, item_size, nbytes)) return "more bytes than fit 63 bits";
  if (empty) return {};  // it may begin anywhere: torch.empty(0, 8)[:, 4:] begins behind its storage
  if (overflows) return "sizes and strides that overflow";
  if (last >= storage_numel) {
    return "element " + std::to_string(last) + " of a storage of " + std::to_string(storage_numel);
  }
  return {};
}

std::vector<std::int64_t> contiguous_strides(std::span<const std::int64_t> size) {
  std::vector<std::int64_t> strides(size.size());
  std::int64_t stride = 1;
  for (std::size_t axis = size.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= std::max<std::int64_t>(size[axis], 1);
  }
  return strides;
}

}  // namespace zerocopy
