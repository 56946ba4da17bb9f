// Reads a file past the page cache (O_DIRECT), for data used once and for disks that are faster
// than a copy by the kernel.
//
//   wanted     ░▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░
//   blocks    ├────┼────┼────┼────┤────┤     O_DIRECT reads whole blocks, to equally aligned memory
//              head│   direct    │ tail      both ends are read through the page cache
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "io/source.h"

namespace zerocopy {

// O_DIRECT needs offsets, sizes and addresses aligned to this. A page suits every disk.
constexpr std::uint64_t kDirectBlock = 4096;

class DirectSource final : public Source {
 public:
  // Like FileSource. If the file system refuses O_DIRECT, reads go through the page cache: see
  // is_direct().
  DirectSource(File file, std::uint64_t start, TransferOptions options);

  std::uint64_t size() const noexcept override { return file_.size() - start_; }
  void require_unchanged() const override { file_.require_unchanged(); }
  void require_in_place() const override { file_.require_in_place(); }
  void expect(std::span<const Extent> ranges, std::uint64_t start) const override {
    file_.expect(ranges, start_ + start);
  }
  bool is_direct() const noexcept override { return direct_.load(std::memory_order_relaxed); }
  bool is_cached(Extent /*extent*/) const override { return false; }

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override;
  std::uint64_t fill_directly(std::uint64_t offset, std::span<std::byte> into) const;

  File file_;
  File past_cache_;  // the same file; without O_DIRECT if that is refused
  std::uint64_t start_;
  mutable std::atomic<bool> direct_;
};

// Reads a file through the page cache. read_once() bypasses the cache for uncached bytes.
class CacheSparingSource final : public FileSource {
 public:
  using FileSource::FileSource;

  bool is_cached(Extent extent) const override;

 private:
  void fill_once(std::uint64_t offset, std::span<std::byte> into) const override;
  const Source& past_cache() const;

  mutable std::once_flag opening_;
  mutable std::unique_ptr<const Source> past_cache_;  // opened on first use
};

}  // namespace zerocopy
