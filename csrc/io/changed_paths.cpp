#include "io/changed_paths.h"

#include <sys/stat.h>

namespace zerocopy {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

std::int64_t nanoseconds_of(const timespec& time) {
  return time.tv_sec * kNanosecondsPerSecond + time.tv_nsec;
}

std::array<std::int64_t, 5> identity_of(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino),
          static_cast<std::int64_t>(status.st_size), nanoseconds_of(status.st_mtim),
          nanoseconds_of(status.st_ctim)};
}

bool is_unchanged(const KnownPath& known, bool within_boot) {
  struct stat status {};
  const bool is_there = stat(known.path.c_str(), &status) == 0;
  if (!is_there || known.kind == KnownPath::Kind::missing) {
    return !is_there && known.kind == KnownPath::Kind::missing;
  }
  if (known.kind == KnownPath::Kind::folder) return S_ISDIR(status.st_mode);
  std::array<std::int64_t, 5> now = identity_of(status);
  if (!within_boot) now[0] = known.identity[0];
  if (known.kind == KnownPath::Kind::listed) now[2] = known.identity[2];
  return now == known.identity;
}

}  // namespace

std::vector<std::size_t> changed_paths(const std::vector<KnownPath>& known, bool within_boot) {
  std::vector<std::size_t> changed;
  for (std::size_t number = 0; number < known.size(); ++number) {
    if (!is_unchanged(known[number], within_boot)) changed.push_back(number);
  }
  return changed;
}

}  // namespace zerocopy
