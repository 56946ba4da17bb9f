// What the model server hands out: a pickle and a table in sealed memory, and storages in that, in other
// sealed memory and in the files they came from.
//
//   part 0   ├─ … ─┼─ table ─────────────┼─ pickle ─┼─ … ─┼─ storage ─┼─ storage ─┤      sealed memory
//   part 1                    ├─ storage ─┤      ├─ storage ─┤                            a file, say
//
//   table    one row a storage, by its number in the pickle: part (u64), offset in the part (u64), size (u64)
//
// Each part is mapped once, copy-on-write. Its place in the archive is its number in the upper 16 bits of an
// offset, so that no search leads from an offset to its part.
#pragma once

#include <vector>

#include "checkpoint/archive.h"

namespace zerocopy {

class PublishedArchive final : public Archive {
 public:
  struct Layout {
    std::uint64_t table = 0;  // offset in part 0
    std::uint64_t storages = 0;
    Extent pickle;  // in part 0
  };

  // Throws FormatError when the layout leaves part 0, or a row its part.
  static std::unique_ptr<PublishedArchive> of(std::vector<Region> parts, const Layout& layout);

  const char* container() const noexcept override { return "published"; }
  Document document(bool take_modules) const override;
  Region pickle() const override { return pickle_; }
  std::vector<Record> records(std::span<const Wanted> storages) override;
  std::uint64_t end() const noexcept override { return content_.source()->size(); }

 private:
  PublishedArchive(Content content, Region pickle, std::vector<Extent> table)
      : Archive(std::move(content)), pickle_(std::move(pickle)), table_(std::move(table)) {}

  Region pickle_;
  std::vector<Extent> table_;  // in the archive
};

}  // namespace zerocopy
