// A file read past the page cache (O_DIRECT): for data that nobody will ask for again, and for disks that are
// faster than the kernel copies.
//
//   wanted     ░▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░
//   blocks    ├────┼────┼────┼────┤────┤     O_DIRECT takes whole blocks, into memory that lies alike
//              head│   direct    │ tail      the ends are read plainly
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "io/source.h"

namespace zerocopy {

// What file offsets, sizes and addresses of O_DIRECT are multiples of: a page, which suits every disk.
constexpr std::uint64_t kDirectBlock = 4096;

class DirectSource final : public Source {
 public:
  // As FileSource. A file system that refuses O_DIRECT is read plainly: see is_direct().
  DirectSource(File file, std::uint64_t start, Terms terms);

  std::uint64_t size() const noexcept override { return file_.size() - start_; }
  void require_unchanged() const override { file_.require_unchanged(); }
  void require_in_place() const override { file_.require_in_place(); }
  void expect(std::span<const Extent> ranges, std::uint64_t start) const override {
    file_.expect(ranges, start_ + start);
  }
  bool is_direct() const noexcept override { return direct_.load(std::memory_order_relaxed); }
  bool is_at_hand(Extent /*extent*/) const override { return false; }

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override;
  std::uint64_t fill_directly(std::uint64_t offset, std::span<std::byte> into) const;

  File file_;
  File past_cache_;  // the same file; plain as well where O_DIRECT is refused
  std::uint64_t start_;
  mutable std::atomic<bool> direct_;
};

// A file read plainly; what is read once comes past the page cache where it is not there.
class SparingSource final : public FileSource {
 public:
  using FileSource::FileSource;

  bool is_at_hand(Extent extent) const override;

 private:
  void fill_once(std::uint64_t offset, std::span<std::byte> into) const override;
  const Source& past_cache() const;

  mutable std::once_flag opening_;
  mutable std::unique_ptr<const Source> past_cache_;  // opened when the first bytes want it
};

}  // namespace zerocopy
