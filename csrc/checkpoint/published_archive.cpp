#include "checkpoint/published_archive.h"

#include <array>
#include <charconv>
#include <cstring>

namespace zerocopy {
namespace {

constexpr unsigned kMappingShift = 48;
constexpr std::uint64_t kMaxMappings = std::uint64_t{1} << (64U - kMappingShift);
constexpr std::uint64_t kMaxMapping = std::uint64_t{1} << kMappingShift;

using Mappings = std::shared_ptr<const std::vector<Region>>;

// Returns the bytes of an extent of the archive.
Region slice_of(const Mappings& mappings, Extent extent) {
  const std::uint64_t number = extent.offset >> kMappingShift;
  if (number >= mappings->size()) throw FormatError("published: no mapping " + std::to_string(number));
  return (*mappings)[number].slice({extent.offset % kMaxMapping, extent.size});
}

class MappingsSource final : public Source {
 public:
  explicit MappingsSource(Mappings mappings) : mappings_(std::move(mappings)) {}

  std::uint64_t size() const noexcept override { return mappings_->size() << kMappingShift; }
  void require_unchanged() const override {}  // the caller has checked the files
  void require_in_place() const override {}

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    if (!into.empty()) {
      std::memcpy(into.data(), slice_of(mappings_, {offset, into.size()}).data(), into.size());
    }
  }

  Mappings mappings_;
};

class MappingsMapper final : public Mapper {
 public:
  explicit MappingsMapper(Mappings mappings) : mappings_(std::move(mappings)) {}

  Region region(Extent extent) override { return slice_of(mappings_, extent); }
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override {
    // NOLINTNEXTLINE(*-reinterpret-cast): the address's alignment
    return reinterpret_cast<std::uintptr_t>(slice_of(mappings_, {offset, 0}).data()) % alignment == 0;
  }

 private:
  Mappings mappings_;
};

// Returns the fields of a row.
template <std::size_t Size>
std::array<std::uint64_t, Size> row_at(ByteSpan table, std::uint64_t number) {
  std::array<std::uint64_t, Size> fields{};
  std::memcpy(fields.data(), table.data() + number * sizeof(fields), sizeof(fields));
  return fields;
}

constexpr std::uint64_t kMappingFields = 3;
constexpr std::uint64_t kStorageFields = 4;

Region table_in(const Region& first, PublishedArchive::Rows rows, std::uint64_t fields) {
  const std::uint64_t size = fields * sizeof(std::uint64_t);
  if (rows.count > kMaxMapping / size) throw FormatError("published: a table is too long");
  return first.slice({rows.offset, rows.count * size});
}

std::vector<Region> map_all(ByteSpan table, std::uint64_t count, std::span<const std::uint64_t> part_sizes,
                            const PublishedArchive::Map& map) {
  if (count >= kMaxMappings) throw FormatError("published: too many mappings");
  std::vector<Region> mappings;
  mappings.reserve(count);
  for (std::uint64_t number = 0; number < count; ++number) {
    const auto [part, offset, size] = row_at<kMappingFields>(table, number);
    const Extent extent{offset, size};
    if (part >= part_sizes.size() || !extent.fits(part_sizes[part]) || size >= kMaxMapping) {
      throw FormatError("published: mapping " + std::to_string(number) + " leaves its part");
    }
    mappings.push_back(map(part, extent));
  }
  return mappings;
}

}  // namespace

std::vector<PublishedArchive::Row> PublishedArchive::read_rows(ByteSpan table, std::uint64_t count,
                                                               std::span<const Region> mappings) {
  std::vector<Row> rows;
  rows.reserve(count);
  for (std::uint64_t number = 0; number < count; ++number) {
    const auto [mapping, offset, size, same] = row_at<kStorageFields>(table, number);
    const Extent extent{offset, size};
    if (mapping >= mappings.size() || !extent.fits(mappings[mapping].size())) {
      throw FormatError("published: storage " + std::to_string(number) + " leaves its mapping");
    }
    const Extent in_archive{(mapping << kMappingShift) + offset, size};
    if (same > number || (same < number && rows[same].extent != in_archive)) {
      throw FormatError("published: storage " + std::to_string(number) + " is not the same as storage " +
                        std::to_string(same));
    }
    rows.push_back({in_archive, same});
  }
  return rows;
}

std::unique_ptr<PublishedArchive> PublishedArchive::of(const Region& first,
                                                       std::span<const std::uint64_t> part_sizes,
                                                       const Layout& layout, const Map& map) {
  const Region mapping_rows = table_in(first, layout.mappings, kMappingFields);
  auto mappings = std::make_shared<const std::vector<Region>>(
      map_all(mapping_rows.bytes(), layout.mappings.count, part_sizes, map));
  const Region storage_rows = table_in(first, layout.storages, kStorageFields);
  std::vector<Row> rows = read_rows(storage_rows.bytes(), layout.storages.count, *mappings);
  Region pickle = first.slice(layout.pickle);
  Content content(std::make_shared<const MappingsSource>(mappings),
                  std::make_shared<MappingsMapper>(mappings), Mode::copy_on_write);
  return std::unique_ptr<PublishedArchive>(
      new PublishedArchive(std::move(content), std::move(pickle), std::move(rows)));
}

Document PublishedArchive::document(bool stubs) const { return read_pickle(pickle_, {.stubs = stubs}); }

std::vector<Record> PublishedArchive::records(std::span<const StorageRequest> storages) {
  std::vector<Record> records;
  records.reserve(storages.size());
  // The first record of each storage, by its first row.
  std::vector<std::optional<std::size_t>> first(rows_.size());
  for (const StorageRequest& storage : storages) {
    std::uint64_t number = 0;
    const char* end = storage.key.data() + storage.key.size();
    const auto [stop, error] = std::from_chars(storage.key.data(), end, number);
    if (error != std::errc() || stop != end || number >= rows_.size()) {
      throw FormatError("published: no storage " + quote(storage.key));
    }
    const Row& row = rows_[number];
    if (row.extent.size != storage.nbytes) {
      throw FormatError("published: storage " + quote(storage.key) + " holds " +
                        std::to_string(row.extent.size) + " bytes, not " + std::to_string(storage.nbytes));
    }
    std::optional<std::size_t>& same = first[row.first];
    records.push_back({.name = storage.key,
                       .extent = row.extent,
                       .encoding = Encoding::stored,
                       .size = row.extent.size,
                       .same_as = same});
    if (!same) same = records.size() - 1;
  }
  return records;
}

}  // namespace zerocopy
