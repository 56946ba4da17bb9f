#include "io/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "memory/pages.h"

namespace zerocopy {
namespace {

struct Protection {
  int access;
  int flags;
};

Protection protection_of(Mode mode) {
  switch (mode) {
    case Mode::read_only:
      return {PROT_READ, MAP_PRIVATE | MAP_NORESERVE};
    case Mode::shared:
      return {PROT_READ | PROT_WRITE, MAP_SHARED};
    case Mode::copy_on_write:
      break;
  }
  return {PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE};
}

int number_of(Advice advice) {
  switch (advice) {
    case Advice::together:
      return MADV_NORMAL;
    case Advice::scattered:
      return MADV_RANDOM;
    case Advice::huge:
      return MADV_HUGEPAGE;
    case Advice::soon:
      break;
  }
  return MADV_WILLNEED;
}

// For MADV_WILLNEED the kernel accepts at most its read-ahead size per call, usually 128 KiB.
constexpr std::size_t kReadAhead = std::size_t{128} << 10U;

struct PageRange {
  std::byte* begin;
  std::size_t length;
};

PageRange pages_of(ByteSpan mapped) {
  // NOLINTNEXTLINE(*-reinterpret-cast): the address's offset in its page
  const std::uint64_t lead = reinterpret_cast<std::uintptr_t>(mapped.data()) % page_size();
  // NOLINTNEXTLINE(*-const-cast): this use of madvise does not modify pages
  return {const_cast<std::byte*>(mapped.data()) - lead, mapped.size() + lead};
}

}  // namespace

Region map_extent(const File& file, Extent extent, Mode mode) {
  if (!extent.fits(file.size())) throw FormatError("file ends before " + hex(extent.offset));
  if (extent.size == 0) return {};
  const std::uint64_t lead = extent.offset % page_size();  // mmap starts at page boundaries only
  const std::size_t length = extent.size + lead;
  const auto [access, flags] = protection_of(mode);
  void* base =
      ::mmap(nullptr, length, access, flags, file.descriptor(), static_cast<off_t>(extent.offset - lead));
  if (base == MAP_FAILED) throw FileError(errno, file.path());
  return {static_cast<std::byte*>(base) + lead, static_cast<std::size_t>(extent.size),
          OwnerRef(new Pages(base, length))};
}

Region map_file(const File& file, std::uint64_t offset, Mode mode) {
  return map_extent(file, {offset, file.size() - offset}, mode);
}

std::shared_ptr<Mapper> WholeMapper::of(Region whole) {
  if (whole.data() == nullptr) return nullptr;
  return std::make_shared<WholeMapper>(std::move(whole));
}

bool WholeMapper::is_aligned(std::uint64_t offset, std::uint64_t alignment) const {
  // NOLINTNEXTLINE(*-reinterpret-cast): the address's alignment
  return (reinterpret_cast<std::uintptr_t>(whole_.data()) + offset) % alignment == 0;
}

void advise(ByteSpan mapped, Advice advice) {
  if (mapped.empty()) return;
  const auto [begin, length] = pages_of(mapped);
  const std::size_t step = advice == Advice::soon ? kReadAhead : length;
  for (std::size_t at = 0; at < length; at += step) {
    ::madvise(begin + at, std::min(step, length - at), number_of(advice));
  }
}

bool populate(ByteSpan mapped) {
  if (mapped.empty()) return true;
  const auto [begin, length] = pages_of(mapped);
  return ::madvise(begin, length, MADV_POPULATE_READ) == 0;
}

void lock(ByteSpan mapped, const std::string& name) {
  if (mapped.empty()) return;
  const auto [begin, length] = pages_of(mapped);
  // Not mlock, which copies every page of a writable private mapping.
  if (::mlock2(begin, length, MLOCK_ONFAULT) != 0) throw FileError(errno, name);
}

}  // namespace zerocopy
