#include "memory/region.h"

#include <new>

namespace zerocopy {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Region Region::allocate(std::size_t size) {
  auto* data = static_cast<std::byte*>(::operator new(size, kAlignment));
  return {data, size, std::shared_ptr<const void>(data, [](const void* memory) {
            ::operator delete(const_cast<void*>(memory), kAlignment);
          })};
}

}  // namespace zerocopy
