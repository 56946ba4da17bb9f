#include "checkpoint/published_archive.h"

#include <array>
#include <charconv>
#include <cstring>

namespace zerocopy {
namespace {

constexpr unsigned kPartShift = 48;
constexpr std::uint64_t kMostParts = std::uint64_t{1} << (64U - kPartShift);
constexpr std::uint64_t kLargestPart = std::uint64_t{1} << kPartShift;

using Parts = std::shared_ptr<const std::vector<Region>>;

// The part that an offset in the archive leads to, and the extent in it.
Region slice_of(const Parts& parts, Extent extent) {
  const std::uint64_t number = extent.offset >> kPartShift;
  if (number >= parts->size()) throw FormatError("published: no part " + std::to_string(number));
  return (*parts)[number].slice({extent.offset % kLargestPart, extent.size});
}

class PartsSource final : public Source {
 public:
  explicit PartsSource(Parts parts) : parts_(std::move(parts)) {}

  std::uint64_t size() const noexcept override { return parts_->size() << kPartShift; }
  void require_unchanged() const override {}  // the server has asked the files
  void require_in_place() const override {}

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    if (!into.empty()) {
      std::memcpy(into.data(), slice_of(parts_, {offset, into.size()}).data(), into.size());
    }
  }

  Parts parts_;
};

class PartsMapper final : public Mapper {
 public:
  explicit PartsMapper(Parts parts) : parts_(std::move(parts)) {}

  Region region(Extent extent) override { return slice_of(parts_, extent); }
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override {
    // NOLINTNEXTLINE(*-reinterpret-cast): an address, to see its alignment
    return reinterpret_cast<std::uintptr_t>(slice_of(parts_, {offset, 0}).data()) % alignment == 0;
  }

 private:
  Parts parts_;
};

struct Row {
  std::uint64_t part = 0;
  Extent extent;
};

constexpr std::uint64_t kRowSize = 3 * sizeof(std::uint64_t);

Row row_at(ByteSpan table, std::uint64_t number) {
  std::array<std::uint64_t, 3> fields{};
  std::memcpy(fields.data(), table.data() + number * kRowSize, kRowSize);
  return {fields[0], {fields[1], fields[2]}};
}

std::vector<Extent> read_table(ByteSpan table, std::uint64_t count, const std::vector<Region>& parts) {
  std::vector<Extent> extents;
  extents.reserve(count);
  for (std::uint64_t number = 0; number < count; ++number) {
    const auto [part, extent] = row_at(table, number);
    if (part >= parts.size() || !extent.fits(parts[part].size())) {
      throw FormatError("published: storage " + std::to_string(number) + " leaves its part");
    }
    extents.push_back({(part << kPartShift) + extent.offset, extent.size});
  }
  return extents;
}

}  // namespace

std::unique_ptr<PublishedArchive> PublishedArchive::of(std::vector<Region> parts, const Layout& layout) {
  if (parts.empty() || parts.size() >= kMostParts) throw FormatError("published: a wrong number of parts");
  for (const Region& part : parts) {
    if (part.size() >= kLargestPart) throw FormatError("published: a part of more than 256 TiB");
  }
  if (layout.storages > kLargestPart / kRowSize) throw FormatError("published: a table too long");
  const Region table = parts[0].slice({layout.table, layout.storages * kRowSize});
  std::vector<Extent> extents = read_table(table.bytes(), layout.storages, parts);
  Region pickle = parts[0].slice(layout.pickle);
  auto shared = std::make_shared<const std::vector<Region>>(std::move(parts));
  Content content(std::make_shared<const PartsSource>(shared), std::make_shared<PartsMapper>(shared),
                  Mode::copy_on_write);
  return std::unique_ptr<PublishedArchive>(
      new PublishedArchive(std::move(content), std::move(pickle), std::move(extents)));
}

Document PublishedArchive::document(bool take_modules) const {
  return read_pickle(pickle_, {.take_modules = take_modules});
}

std::vector<Record> PublishedArchive::records(std::span<const Wanted> storages) {
  std::vector<Record> records;
  records.reserve(storages.size());
  for (const Wanted& storage : storages) {
    std::uint64_t number = 0;
    const char* end = storage.key.data() + storage.key.size();
    const auto [stop, error] = std::from_chars(storage.key.data(), end, number);
    if (error != std::errc() || stop != end || number >= table_.size()) {
      throw FormatError("published: no storage " + quote(storage.key));
    }
    const Extent extent = table_[number];
    if (extent.size != storage.nbytes) {
      throw FormatError("published: storage " + quote(storage.key) + " holds " + std::to_string(extent.size) +
                        " bytes, not " + std::to_string(storage.nbytes));
    }
    records.push_back(
        {.name = storage.key, .extent = extent, .encoding = Encoding::stored, .size = extent.size});
  }
  return records;
}

}  // namespace zerocopy
