// Counts the bytes that new has allocated, for MemoryLimit.
#include <malloc.h>

#include <atomic>
#include <limits>
#include <new>

#include "fuzz.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> limit{kNone};

void* count(void* room) {
  const auto size = static_cast<std::int64_t>(::malloc_usable_size(room));
  if (live.fetch_add(size) + size > limit.load()) {
    limit = kNone;
    violated("memory in proportion to the input");
  }
  return room;
}

void* allocate(std::size_t size) noexcept {
  void* room = std::malloc(size == 0 ? 1 : size);
  return room == nullptr ? nullptr : count(room);
}

void release(void* room) noexcept {
  if (room != nullptr) live -= static_cast<std::int64_t>(::malloc_usable_size(room));
  std::free(room);
}

void* or_throw(void* room) {
  if (room == nullptr) throw std::bad_alloc();
  return room;
}

// Not aligned_alloc, which needs a multiple of the alignment: a sanitizer would report the
// difference.
void* allocate_aligned(std::size_t size, std::align_val_t alignment) {
  void* room = nullptr;
  if (::posix_memalign(&room, static_cast<std::size_t>(alignment), size == 0 ? 1 : size) != 0) {
    throw std::bad_alloc();
  }
  return count(room);
}

}  // namespace

MemoryLimit::MemoryLimit(std::uint64_t bytes) noexcept { limit = live + static_cast<std::int64_t>(bytes); }
MemoryLimit::~MemoryLimit() { limit = kNone; }

}  // namespace zerocopy::fuzz

using zerocopy::fuzz::allocate;
using zerocopy::fuzz::allocate_aligned;
using zerocopy::fuzz::or_throw;
using zerocopy::fuzz::release;

// Replaces all forms of new and delete, since a sanitizer's new must not meet this delete.
void* operator new(std::size_t size) { return or_throw(allocate(size)); }
void* operator new[](std::size_t size) { return or_throw(allocate(size)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) { return allocate_aligned(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_aligned(size, alignment);
}
void operator delete(void* room) noexcept { release(room); }
void operator delete[](void* room) noexcept { release(room); }
void operator delete(void* room, std::size_t) noexcept { release(room); }
void operator delete[](void* room, std::size_t) noexcept { release(room); }
void operator delete(void* room, const std::nothrow_t&) noexcept { release(room); }
void operator delete[](void* room, const std::nothrow_t&) noexcept { release(room); }
void operator delete(void* room, std::align_val_t) noexcept { release(room); }
void operator delete[](void* room, std::align_val_t) noexcept { release(room); }
void operator delete(void* room, std::size_t, std::align_val_t) noexcept { release(room); }
void operator delete[](void* room, std::size_t, std::align_val_t) noexcept { release(room); }
