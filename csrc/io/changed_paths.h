// Compares the state of paths with a recorded state. All paths are given at once, so that a check
// of a kept result costs one system call a path.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace zerocopy {

struct KnownPath {
  enum class Kind : std::uint8_t { file, missing, folder, listed };

  std::string path;
  Kind kind;
  // Device, inode, size, and the times of the last change of content and of inode in nanoseconds.
  // The size of a listed folder is ignored.
  std::array<std::int64_t, 5> identity;
};

// Returns the positions of the paths whose state differs from the recorded state. Device numbers can
// differ after a boot, so they are compared only if `within_boot`.
std::vector<std::size_t> changed_paths(const std::vector<KnownPath>& known, bool within_boot);

}  // namespace zerocopy
