#include "io/windows.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

namespace zerocopy {
namespace {

constexpr std::uint64_t kMinStep = std::uint64_t{4} << 20U;
// twice as many windows are still far below vm.max_map_count
constexpr std::uint64_t kMaxSteps = 4096;

}  // namespace

class WindowMapper::Window final : public Owner {
 public:
  Window(Extent extent, Region pages, std::shared_ptr<WindowTable> known)
      : extent_(extent), pages_(std::move(pages)), table_(std::move(known)) {}

  ~Window() override {
    const std::lock_guard lock(table_->mutex);
    const auto found = table_->windows.find({extent_.offset, extent_.size});
    if (found != table_->windows.end() && found->second == this) table_->windows.erase(found);
  }

  // `reference` refers to this window.
  Region slice(Extent extent, OwnerRef reference) const {
    const Region part = pages_.slice({extent.offset - extent_.offset, extent.size});
    return {part.data(), part.size(), std::move(reference)};
  }

 private:
  Extent extent_;
  Region pages_;
  std::shared_ptr<WindowTable> table_;
};

WindowMapper::WindowMapper(std::shared_ptr<const File> file, std::uint64_t start, Mode mode)
    : file_(std::move(file)),
      start_(start),
      mode_(mode),
      step_(std::max(kMinStep, std::bit_ceil(file_->size() / kMaxSteps))) {}

Extent WindowMapper::in_file(Extent extent) const {
  if (start_ > file_->size() || !extent.fits(file_->size() - start_)) {
    throw FormatError("range of " + std::to_string(extent.size) + " bytes at " + hex(extent.offset) +
                      " exceeds the file");
  }
  return {start_ + extent.offset, extent.size};
}

Extent WindowMapper::window_around(Extent extent) const {
  const std::uint64_t begin = extent.offset / step_ * step_;
  const std::uint64_t last = (extent.offset + extent.size - 1) / step_ * step_;
  return {begin, std::min(last - begin + step_, file_->size() - begin)};
}

Region WindowMapper::region(Extent extent) {
  if (extent.size == 0) return {};
  const Extent wanted = in_file(extent);
  const Extent around = window_around(wanted);
  const std::lock_guard lock(table_->mutex);
  Window*& window = table_->windows[{around.offset, around.size}];
  OwnerRef reference =
      // A window being destroyed waits for the lock.
      window == nullptr ? OwnerRef() : OwnerRef::if_alive(window);
  if (!reference) {
    window = nullptr;  // leaves no dangling pointer if the code below throws
    window = new Window(around, map_extent(*file_, around, mode_), table_);
    reference = OwnerRef(window);
  }
  return window->slice(wanted, std::move(reference));
}

Region WindowMapper::region_apart(Extent extent) {
  return extent.size == 0 ? Region() : map_extent(*file_, in_file(extent), mode_);
}

bool WindowMapper::is_aligned(std::uint64_t offset, std::uint64_t alignment) const {
  return (start_ + offset) % alignment == 0;  // windows begin at page boundaries
}

}  // namespace zerocopy
