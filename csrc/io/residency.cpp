#include "io/residency.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "io/mapping.h"
#include "memory/pages.h"

namespace zerocopy {
namespace {

// cachestat(2) of Linux 6.5, which older headers lack. Its number is the same on every
// architecture.
#ifdef SYS_cachestat
constexpr long kCachestat = SYS_cachestat;
#else
constexpr long kCachestat = 451;
#endif

struct CacheRange {
  std::uint64_t offset;
  std::uint64_t size;
};

struct CacheStatus {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t being_written;
  std::uint64_t evicted;
  std::uint64_t lately_evicted;
};

// Returns the number of cached pages, in the machine's page size.
std::optional<std::uint64_t> pages_by_cachestat(const File& file, Extent extent) {
  CacheRange range{extent.offset, extent.size};
  CacheStatus status{};
  if (::syscall(kCachestat, file.descriptor(), &range, &status, 0) != 0) return std::nullopt;
  return status.cached;
}

// For files of other users, mincore reports every page as resident.
std::optional<std::uint64_t> pages_by_mincore(const File& file, Extent extent) {
  try {
    const std::uint64_t page = page_size();
    const std::uint64_t lead = extent.offset % page;
    const Region mapped = map_extent(file, {extent.offset - lead, extent.size + lead}, Mode::read_only);
    std::vector<unsigned char> pages((mapped.size() + page - 1) / page);
    if (::mincore(mapped.data(), mapped.size(), pages.data()) != 0) return std::nullopt;
    return static_cast<std::uint64_t>(
        std::ranges::count_if(pages, [](unsigned char state) { return state % 2 == 1; }));
    // The file shrank or cannot be mapped; reading it reports the error.
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

bool is_cached(const File& file, Extent extent) {
  std::optional<std::uint64_t> pages = pages_by_cachestat(file, extent);
  if (!pages) pages = pages_by_mincore(file, extent);
  return !pages || 2 * *pages * page_size() >= extent.size;
}

}  // namespace zerocopy
