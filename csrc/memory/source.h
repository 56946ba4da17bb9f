// Random-access bytes to parse: a file read by pread, or memory.
//
// Whatever the library itself reads it reads through a Source, never through the mapping: a file that
// shrinks meanwhile is an exception instead of SIGBUS, no page table is filled for headers strewn over
// gigabytes (0.5 us a header against 3 us), and a file that cannot be mapped is parsed all the same.
#pragma once

#include <cstring>
#include <memory>

#include "memory/file.h"
#include "memory/region.h"

namespace zerocopy {

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  virtual std::uint64_t size() const noexcept = 0;

  // Throws FileError (ESTALE) when the bytes can be seen to be others than when it was opened: to be
  // asked before anything that was made of them is handed out.
  virtual void require_unchanged() const = 0;

  // Throws FileError when it is not to be found any more where it was opened, at its whole length.
  virtual void require_in_place() const = 0;

  // Both throw FormatError when the range leaves the source.
  void read(std::uint64_t offset, std::span<std::byte> into) const {
    require({offset, into.size()});
    fill(offset, into);
  }

  Region read(Extent extent) const {
    require(extent);
    Region bytes = Region::allocate(static_cast<std::size_t>(extent.size));
    fill(extent.offset, {bytes.data(), bytes.size()});
    return bytes;
  }

 private:
  virtual void fill(std::uint64_t offset, std::span<std::byte> into) const = 0;

  void require(Extent extent) const {
    if (extent.fits(size())) return;
    throw FormatError("range of " + std::to_string(extent.size) + " bytes at " + hex(extent.offset) +
                      " runs past the end of the file at " + hex(size()));
  }
};

// A file from `start` to its end.
class FileSource final : public Source {
 public:
  FileSource(File file, std::uint64_t start) : file_(std::move(file)), start_(start) {
    if (start_ > file_.size()) throw FormatError("file ends before " + hex(start_));
  }

  std::uint64_t size() const noexcept override { return file_.size() - start_; }
  void require_unchanged() const override { file_.require_unchanged(); }
  void require_in_place() const override { file_.require_in_place(); }

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    file_.read(start_ + offset, into);
  }

  File file_;
  std::uint64_t start_;
};

class MemorySource final : public Source {
 public:
  explicit MemorySource(Region region) : region_(std::move(region)) {}

  std::uint64_t size() const noexcept override { return region_.size(); }
  void require_unchanged() const override {}  // memory has no date
  void require_in_place() const override {}

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    if (!into.empty()) std::memcpy(into.data(), region_.data() + offset, into.size());
  }

  Region region_;
};

}  // namespace zerocopy
