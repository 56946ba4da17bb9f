// Random access to the bytes of a file by pread, or to memory.
//
// The library reads through a Source and never through a mapping. So a file that shrinks during
// parsing raises an exception instead of SIGBUS. Headers spread over gigabytes cost no page faults
// (0.5 us per header instead of 3 us). Files that cannot be mapped can still be parsed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "io/file.h"
#include "io/mapping.h"
#include "io/transfer.h"
#include "memory/pages.h"
#include "memory/region.h"

namespace zerocopy {

// Alignment that suits every element type and AVX-512.
constexpr std::uint64_t kAnyElement = 64;

class Source {
 public:
  Source() = default;
  // `options` apply to reads of many bytes.
  explicit Source(TransferOptions options) : options_(std::move(options)) {}
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  virtual std::uint64_t size() const noexcept = 0;

  // Throws FileError (ESTALE) if the file has visibly changed since it was opened. Call this before
  // returning anything made from its bytes.
  virtual void require_unchanged() const = 0;

  // Throws FileError if the path does not lead to the whole file any more.
  virtual void require_in_place() const = 0;

  // Returns whether reads bypass the page cache.
  virtual bool is_direct() const noexcept { return false; }

  // Returns whether each read waits for another machine. Then only what is used is read and checked.
  virtual bool is_far() const noexcept { return false; }

  // Returns whether these bytes are in memory, so reading them does not wait for a disk. May
  // inspect each page, so callers ask about samples only.
  virtual bool is_cached(Extent /*extent*/) const { return true; }

  // Announces sequential reads of these ranges, counted from `start`.
  virtual void expect(std::span<const Extent> /*ranges*/, std::uint64_t /*start*/) const {}

  // Each read throws FormatError when a range exceeds the source.
  void read(std::uint64_t offset, std::span<std::byte> into) const {
    require({offset, into.size()});
    fill(offset, into);
  }

  // For bytes that this process reads once: uncached bytes may stay out of the page cache.
  void read_once(std::uint64_t offset, std::span<std::byte> into) const {
    require({offset, into.size()});
    fill_once(offset, into);
  }

  Region read(Extent extent) const {
    require(extent);
    const auto size = static_cast<std::size_t>(extent.size);
    if (size <= kRequest) {
      Region bytes = Region::allocate(size);
      fill(extent.offset, {bytes.data(), size});
      return bytes;
    }
    Region bytes = allocate_pages(size, extent.offset % kAnyElement == 0 ? extent.offset : 0);
    const Piece whole{extent, bytes.data()};
    read(std::span(&whole, 1));
    return bytes;
  }

  // Reads many or large ranges with several threads, for bytes that this process reads once.
  void read(std::span<const Piece> pieces) const {
    for (const Piece& piece : pieces) require(piece.extent);
    TransferOptions options = options_;
    if (are_cached(pieces)) options.threads = std::min(options.threads, processors());
    transfer(
        pieces,
        [this](const Piece& request) {
          fill_once(request.extent.offset, {request.to, static_cast<std::size_t>(request.extent.size)});
        },
        options);
  }

 private:
  virtual void fill(std::uint64_t offset, std::span<std::byte> into) const = 0;
  virtual void fill_once(std::uint64_t offset, std::span<std::byte> into) const { fill(offset, into); }

  // Checks the first, the middle and the last piece.
  bool are_cached(std::span<const Piece> pieces) const {
    if (pieces.empty()) return true;
    const Extent& last = pieces.back().extent;
    const std::uint64_t end = std::min(last.size, kRequest);
    return is_cached(start_of(pieces.front())) && is_cached(start_of(pieces[pieces.size() / 2])) &&
           is_cached({last.offset + last.size - end, end});
  }

  static Extent start_of(const Piece& piece) {
    return {piece.extent.offset, std::min(piece.extent.size, kRequest)};
  }

  void require(Extent extent) const {
    if (extent.fits(size())) return;
    throw FormatError("range of " + std::to_string(extent.size) + " bytes at " + hex(extent.offset) +
                      " runs past the end of the file at " + hex(size()));
  }

  TransferOptions options_;
};

// A file from `start` to its end.
class FileSource : public Source {
 public:
  FileSource(File file, std::uint64_t start, TransferOptions options = {})
      : Source(std::move(options)), file_(std::move(file)), start_(start) {
    if (start_ > file_.size()) throw FormatError("file ends before " + hex(start_));
  }

  const File& file() const noexcept { return file_; }
  std::uint64_t size() const noexcept override { return file_.size() - start_; }
  void require_unchanged() const override { file_.require_unchanged(); }
  void require_in_place() const override { file_.require_in_place(); }
  void expect(std::span<const Extent> ranges, std::uint64_t start) const override {
    file_.expect(ranges, start_ + start);
  }

 protected:
  std::uint64_t start() const noexcept { return start_; }

  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    file_.read(start_ + offset, into);
  }

 private:
  File file_;
  std::uint64_t start_;
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(Region region) : region_(std::move(region)) {}

  std::uint64_t size() const noexcept override { return region_.size(); }
  void require_unchanged() const override {}  // memory has no modification time
  void require_in_place() const override {}

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    if (!into.empty()) std::memcpy(into.data(), region_.data() + offset, into.size());
  }

  Region region_;
};

}  // namespace zerocopy
