// Maps a file a window at a time: one is there while a Region in it is, so a file larger than the address
// space that a process may use can be read part by part.
//
//   file     ├────┬────┬────┬────┬────┬────┤   borders at multiples of a size
//   regions    ▒▒ ▒   ▒▒▒▒▒▒▒▒▒▒    ▒
//   windows  ├────┤├──────────────┤├────┤      from the border before a region to the one behind it
//
// Small regions next to each other share one, and the kernel's limit of mappings (vm.max_map_count) stays
// far.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "io/mapping.h"

namespace zerocopy {

class WindowMapper final : public Mapper {
 public:
  // From `start` on.
  WindowMapper(File file, std::uint64_t start, Mode mode);

  Region region(Extent extent) override;
  Region region_apart(Extent extent) override;
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override;

 private:
  class Window;

  // The windows that are there, by their extent. They hold this: the last may outlive the mapping.
  struct Register {
    std::mutex mutex;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Window*> windows;
  };

  Extent window_around(Extent extent) const;
  Extent in_file(Extent extent) const;

  File file_;
  std::uint64_t start_;
  Mode mode_;
  std::uint64_t step_;
  std::shared_ptr<Register> register_ = std::make_shared<Register>();
};

}  // namespace zerocopy
