// Maps a file in windows. A window lives as long as a Region in it, so a file larger than the
// available address space can be read in parts.
//
//   file     ├────┬────┬────┬────┬────┬────┤   boundaries at multiples of the window size
//   regions    ▒▒ ▒   ▒▒▒▒▒▒▒▒▒▒    ▒
//   windows  ├────┤├──────────────┤├────┤      a region's window ends at the boundaries around it
//
// Neighbouring small regions share a window, so the process stays below the kernel's limit of
// mappings (vm.max_map_count).
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "io/mapping.h"

namespace zerocopy {

class WindowMapper final : public Mapper {
 public:
  // Maps the file from `start` on.
  WindowMapper(std::shared_ptr<const File> file, std::uint64_t start, Mode mode);

  Region region(Extent extent) override;
  Region region_apart(Extent extent) override;
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override;

 private:
  class Window;

  // The existing windows by extent. Windows keep the table alive, since the last window may outlive
  // the mapper.
  struct WindowTable {
    std::mutex mutex;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Window*> windows;
  };

  Extent window_around(Extent extent) const;
  Extent in_file(Extent extent) const;

  std::shared_ptr<const File> file_;
  std::uint64_t start_;
  Mode mode_;
  std::uint64_t step_;
  std::shared_ptr<WindowTable> table_ = std::make_shared<WindowTable>();
};

}  // namespace zerocopy
