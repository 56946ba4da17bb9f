#include "memory/region.h"

#include <new>

namespace zerocopy {
namespace {

constexpr std::align_val_t kAlignment{64};

class Allocation final : public Owner {
 public:
  explicit Allocation(std::size_t size) : data_(static_cast<std::byte*>(::operator new(size, kAlignment))) {}
  ~Allocation() override { ::operator delete(data_, kAlignment); }

  std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_;
};

}  // namespace

Region Region::allocate(std::size_t size) {
  auto* allocation = new Allocation(size);
  return {allocation->data(), size, OwnerRef(allocation)};
}

}  // namespace zerocopy
