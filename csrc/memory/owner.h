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
  friend class Share;

  std::atomic<std::size_t> shares_{0};
};

class Share {
 public:
  Share() = default;
  explicit Share(Owner* owner) noexcept : owner_(owner) { add(); }
  Share(const Share& other) noexcept : owner_(other.owner_) { add(); }
  Share(Share&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
  Share& operator=(Share other) noexcept {
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Share() {
    // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): the analyzer does not follow the atomic count
    if (owner_ != nullptr && owner_->shares_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete owner_;
  }

  // Returns a reference to an owner whose last reference may be released by another thread, or an
  // empty reference. The destructor must not have finished: the caller holds a lock that the
  // destructor takes.
  static Share of_living(Owner* owner) noexcept {
    std::size_t shares = owner->shares_.load(std::memory_order_relaxed);
    while (shares != 0) {
      if (owner->shares_.compare_exchange_weak(shares, shares + 1, std::memory_order_relaxed)) {
        return adopt(owner);
      }
    }
    return {};
  }

  explicit operator bool() const noexcept { return owner_ != nullptr; }
  bool operator==(const Share& other) const noexcept { return owner_ == other.owner_; }

  // For C interfaces: the raw pointer holds the reference until adopt() takes it back.
  Owner* release() noexcept { return std::exchange(owner_, nullptr); }
  static Share adopt(Owner* released) noexcept {
    Share share;
    share.owner_ = released;
    return share;
  }

 private:
  void add() const noexcept {
    if (owner_ != nullptr) owner_->shares_.fetch_add(1, std::memory_order_relaxed);
  }

  Owner* owner_ = nullptr;
};

}  // namespace zerocopy
