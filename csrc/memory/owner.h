// The reference-counted owner of bytes. The count is a member of the owner.
//
// torch keeps the bytes of a storage alive by one pointer and one function. std::shared_ptr would
// need an extra allocation per storage for this pointer. Here the pointer is the Owner itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace zerocopy {

// The last reference destroys the owner, on any thread.
class Owner {
 public:
  Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  virtual ~Owner() = default;

 private:
  friend class OwnerRef;

  std::atomic<std::size_t> references_{0};
};

class OwnerRef {
 public:
  OwnerRef() = default;
  explicit OwnerRef(Owner* owner) noexcept : owner_(owner) { add(); }
  OwnerRef(const OwnerRef& other) noexcept : owner_(other.owner_) { add(); }
  OwnerRef(OwnerRef&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
  OwnerRef& operator=(OwnerRef other) noexcept {
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~OwnerRef() {
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): the analyzer does not follow the atomic count
    if (owner_ != nullptr && owner_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete owner_;
  }

  // Returns a reference to an owner whose last reference may be released by another thread, or an
  // empty reference. The destructor must not have finished: the caller holds a lock that the
  // destructor takes.
  static OwnerRef if_alive(Owner* owner) noexcept {
    std::size_t references = owner->references_.load(std::memory_order_relaxed);
    while (references != 0) {
      if (owner->references_.compare_exchange_weak(references, references + 1, std::memory_order_relaxed)) {
        return adopt(owner);
      }
    }
    return {};
  }

  explicit operator bool() const noexcept { return owner_ != nullptr; }
  bool operator==(const OwnerRef& other) const noexcept { return owner_ == other.owner_; }

  // For C interfaces: the raw pointer holds the reference until adopt() takes it back.
  Owner* release() noexcept { return std::exchange(owner_, nullptr); }
  static OwnerRef adopt(Owner* released) noexcept {
    OwnerRef reference;
    reference.owner_ = released;
    return reference;
  }

 private:
  void add() const noexcept {
    if (owner_ != nullptr) owner_->references_.fetch_add(1, std::memory_order_relaxed);
  }

  Owner* owner_ = nullptr;
};

}  // namespace zerocopy
