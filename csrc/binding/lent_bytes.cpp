#include "binding/lent_bytes.h"

#include <mutex>
#include <unordered_map>

namespace zerocopy {
namespace {

// The owners by the address of their bytes, since Python cannot ask a storage for its owner. An
// entry lives as long as its storage holds a reference.
struct Owners {
  std::mutex mutex;
  std::unordered_multimap<void*, void*> by_address;
};

// Never destroyed, because static destructors release storages too.
Owners& living() {
  static auto* const owners = new Owners();
  return *owners;
}

void give_back(dlpack::ManagedTensor* self) { delete static_cast<LentBytes*>(self->context); }

}  // namespace

LentBytes::LentBytes(void* data, std::uint64_t size, dlpack::Device device, void* owner,
                     const ZerocopyBridgeHost& host)
    : shape_(static_cast<std::int64_t>(size)), owner_(owner), host_(host) {
  managed_.tensor = {.data = data,
                     .device = device,
                     .dimensions = 1,
                     .dtype = dlpack::kByte,
                     .shape = &shape_,
                     .strides = &stride_,
                     .byte_offset = 0};
  managed_.context = this;
  managed_.deleter = &give_back;
  const std::lock_guard lock(living().mutex);
  living().by_address.emplace(data, owner);
}

LentBytes::~LentBytes() {
  {
    const std::lock_guard lock(living().mutex);
    auto [at, end] = living().by_address.equal_range(managed_.tensor.data);
    while (at != end && at->second != owner_) ++at;
    if (at != end) living().by_address.erase(at);
  }
  host_.release_owner(owner_);
}

void* owner_of_lent_bytes(void* data, const ZerocopyBridgeHost& host) {
  const std::lock_guard lock(living().mutex);
  const auto found = living().by_address.find(data);
  if (found == living().by_address.end()) return nullptr;
  host.retain_owner(found->second);
  return found->second;
}

}  // namespace zerocopy
