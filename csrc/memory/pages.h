// Memory by the page: fresh pages for large reads, and the owner that unmaps pages of any kind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/region.h"

namespace zerocopy {

std::uint64_t page_size();

// Mapped pages, of a file or of none: unmapped with the last Region in them.
class Pages final : public Owner {
 public:
  Pages(void* base, std::size_t length) noexcept : base_(base), length_(length) {}
  ~Pages() override;

 private:
  void* base_;
  std::size_t length_;
};

// Fresh private memory for large reads: whole pages, huge ones where the system has them, filled with
// zeros. It begins as far behind a page border as `offset` does, so that a file's blocks fall
// together with pages. Throws std::bad_alloc.
Region allocate_pages(std::size_t size, std::uint64_t offset);

}  // namespace zerocopy
