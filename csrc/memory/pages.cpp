#include "memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace zerocopy {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20U;

}  // namespace

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Pages::~Pages() { ::munmap(base_, length_); }

Region allocate_pages(std::size_t size, std::uint64_t offset) {
  if (size == 0) return {};
  const std::uint64_t lead = offset % page_size();
  // Reserves enough to align to a huge page. The surplus takes address space only.
  const bool huge = size >= kHugePage;
  const std::size_t length = size + lead + (huge ? kHugePage : 0);
  void* base = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  OwnerRef pages(new Pages(base, length));
  auto* begin = static_cast<std::byte*>(base);
  if (huge) {
    // NOLINTNEXTLINE(*-reinterpret-cast): an address, to find the next border of a huge page
    begin += (kHugePage - reinterpret_cast<std::uintptr_t>(base) % kHugePage) % kHugePage;
    ::madvise(begin, size + lead, MADV_HUGEPAGE);
  }
  return {begin + lead, size, std::move(pages)};
}

Region allocate_shared(std::size_t size) {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(base), size, OwnerRef(new Pages(base, size))};
}

}  // namespace zerocopy
