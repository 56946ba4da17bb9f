// A part of a file that is read like a file of its own, for files with several archives.
//
//   file   ├──── archive ────┼── archive ──┼──────── archive ────────┤
//   part                     ├─ 0 ... n ───┤     offsets start at the part
//
// The file is opened and mapped once for all of its parts.
#pragma once

#include <memory>
#include <utility>

#include "io/mapping.h"
#include "io/source.h"

namespace zerocopy {

class PartSource final : public Source {
 public:
  // Throws FormatError when the part exceeds the whole.
  PartSource(std::shared_ptr<const Source> whole, Extent part, TransferOptions options)
      : Source(std::move(options)), whole_(std::move(whole)), part_(part) {
    if (!part_.fits(whole_->size())) {
      throw FormatError("a part of " + std::to_string(part_.size) + " bytes at " + hex(part_.offset) +
                        " runs past the end of the file at " + hex(whole_->size()));
    }
  }

  std::uint64_t size() const noexcept override { return part_.size; }
  void require_unchanged() const override { whole_->require_unchanged(); }
  void require_in_place() const override { whole_->require_in_place(); }
  void expect(std::span<const Extent> ranges, std::uint64_t start) const override {
    whole_->expect(ranges, part_.offset + start);
  }
  bool is_direct() const noexcept override { return whole_->is_direct(); }
  bool is_far() const noexcept override { return whole_->is_far(); }
  bool is_cached(Extent extent) const override {
    return whole_->is_cached({part_.offset + extent.offset, extent.size});
  }

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    whole_->read(part_.offset + offset, into);
  }
  void fill_once(std::uint64_t offset, std::span<std::byte> into) const override {
    whole_->read_once(part_.offset + offset, into);
  }

  std::shared_ptr<const Source> whole_;
  Extent part_;
};

class PartMapper final : public Mapper {
 public:
  PartMapper(std::shared_ptr<Mapper> whole, std::uint64_t start) : whole_(std::move(whole)), start_(start) {}

  Region region(Extent extent) override { return whole_->region(in_whole(extent)); }
  Region region_apart(Extent extent) override { return whole_->region_apart(in_whole(extent)); }
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override {
    return whole_->is_aligned(start_ + offset, alignment);
  }

 private:
  Extent in_whole(Extent extent) const { return {start_ + extent.offset, extent.size}; }

  std::shared_ptr<Mapper> whole_;
  std::uint64_t start_;
};

}  // namespace zerocopy
