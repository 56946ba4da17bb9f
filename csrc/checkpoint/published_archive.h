// A kept result of a call. Part 0, in a file of the cache, holds a pickle and two tables. Storages
// lie in part 0, or in the files that they came from.
//
//   part 0   ├─ mappings ─┼─ storages ─┼─ pickle ─┼─ … ─┼─ storage ─┼─ storage ─┤  the cache's file
//   part 1                     ├─ storage ─┤      ├─ storage ─┤                      e.g. a checkpoint
//
//   mappings   one row per mapping: part (u64), offset in the part (u64), size (u64)
//   storages   one row per storage, by its number in the pickle: mapping (u64), offset in the mapping
//              (u64), size (u64), number of the first row of the same storage (u64)
//
// Each mapping is copy-on-write. Independent storages over the same bytes use separate mappings, so
// a write to one does not change the other. The upper 16 bits of an archive offset are the
// mapping's number, so finding the mapping needs no search.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "checkpoint/archive.h"

namespace zerocopy {

class PublishedArchive final : public Archive {
 public:
  // A table in part 0.
  struct Rows {
    std::uint64_t offset = 0;
    std::uint64_t count = 0;
  };

  struct Layout {
    Rows mappings;
    Rows storages;
    Extent pickle;  // in part 0
  };

  // Maps an extent of a part, by the part's number.
  using Map = std::function<Region(std::size_t part, Extent extent)>;

  // `first` is part 0. Throws FormatError if a table exceeds part 0, a mapping its part, or a
  // storage its mapping.
  static std::unique_ptr<PublishedArchive> of(const Region& first, std::span<const std::uint64_t> part_sizes,
                                              const Layout& layout, const Map& map);

  const char* container() const noexcept override { return "published"; }
  Document document(bool stubs) const override;
  Region pickle() const override { return pickle_; }
  std::vector<Record> records(std::span<const StorageRequest> storages) override;
  std::uint64_t end() const noexcept override { return content_.source()->size(); }

 private:
  struct Row {
    Extent extent;        // in the archive
    std::uint64_t first;  // number of the first row of the same storage
  };

  PublishedArchive(Content content, Region pickle, std::vector<Row> rows)
      : Archive(std::move(content)), pickle_(std::move(pickle)), rows_(std::move(rows)) {}

  static std::vector<Row> read_rows(ByteSpan table, std::uint64_t count, std::span<const Region> mappings);

  Region pickle_;
  std::vector<Row> rows_;
};

}  // namespace zerocopy
