// Page-aligned memory: fresh pages for large reads, and the owner that unmaps pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/region.h"

namespace zerocopy {

std::uint64_t page_size();

// Mapped pages, with or without a file. The last Region in the pages unmaps them.
class Pages final : public Owner {
 public:
  Pages(void* base, std::size_t length) noexcept : base_(base), length_(length) {}
  ~Pages() override;

 private:
  void* base_;
  std::size_t length_;
};

// Allocates fresh zeroed pages for large reads, huge pages where the system has them. The result
// has the same offset within its page as `offset`, so file blocks align with pages. Throws
// std::bad_alloc.
Region allocate_pages(std::size_t size, std::uint64_t offset);

// Allocates zeroed memory that a copy of the process shares with it. Throws std::bad_alloc.
Region allocate_shared(std::size_t size);

}  // namespace zerocopy
