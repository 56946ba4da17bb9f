#include "checkpoint/published_archive.h"

#include "support.h"

namespace zerocopy::test::published_archive_test {
namespace {

constexpr std::string_view kPickle = "\x80\x02N."sv;

constexpr std::uint64_t kMax = ~std::uint64_t{0};

std::string row(std::uint64_t mapping, std::uint64_t offset, std::uint64_t size, std::uint64_t same) {
  return u64(mapping) + u64(offset) + u64(size) + u64(same);
}

std::string mapping(std::uint64_t part, std::uint64_t offset, std::uint64_t size) {
  return u64(part) + u64(offset) + u64(size);
}

// Part 0 holds the tables and the pickle, and `others` are the further parts. Mappings are copies
// here.
std::unique_ptr<PublishedArchive> published(const std::string& mappings, std::uint64_t mapping_rows,
                                            const std::string& storages, std::uint64_t storage_rows,
                                            const std::vector<std::string>& others) {
  std::vector<std::string> parts{mappings + storages + std::string(kPickle)};
  parts.insert(parts.end(), others.begin(), others.end());
  std::vector<std::uint64_t> sizes;
  for (const std::string& part : parts) sizes.push_back(part.size());
  const auto map = [&](std::size_t part, Extent extent) {
    return region_of(parts[part].substr(extent.offset, extent.size));
  };
  const PublishedArchive::Layout layout{.mappings = {0, mapping_rows},
                                        .storages = {mappings.size(), storage_rows},
                                        .pickle = {mappings.size() + storages.size(), kPickle.size()}};
  return PublishedArchive::of(region_of(parts[0]), sizes, layout, map);
}

// Maps each of the further parts once, as a whole.
std::unique_ptr<PublishedArchive> published(const std::string& storages,
                                            const std::vector<std::string>& others, std::uint64_t rows) {
  std::string mappings;
  for (std::size_t i = 0; i < others.size(); ++i) mappings += mapping(i + 1, 0, others[i].size());
  return published(mappings, others.size(), storages, rows, others);
}

std::string text_of(Archive& archive, std::string_view key, std::uint64_t size) {
  const StorageRequest wanted{key, dtype_by_name("uint8"), size};
  const std::vector<Record> records = archive.records(std::span(&wanted, 1));
  return std::string(archive.content().storage(records[0], *dtype_by_name("uint8")).bytes().text());
}

TEST(PublishedArchive, StoragesLieInTheirMappings) {
  const auto archive = published(row(0, 2, 3, 0) + row(1, 0, 5, 1) + row(0, 6, 0, 2), {"abcdef", "hello"}, 3);
  EXPECT_EQ(text_of(*archive, "0", 3), "cde");
  EXPECT_EQ(text_of(*archive, "1", 5), "hello");
  EXPECT_EQ(text_of(*archive, "2", 0), "");
  EXPECT_TRUE(archive->document(false).root.is(Kind::none));
}

TEST(PublishedArchive, MappingsOfTheSameBytesAreIndependent) {
  const auto archive = published(mapping(1, 1, 3) + mapping(1, 0, 6), 2,
                                 row(0, 0, 3, 0) + row(1, 1, 3, 1) + row(1, 1, 3, 1), 3, {"abcdef"});
  const std::vector<StorageRequest> wanted{
      {"0", dtype_by_name("uint8"), 3}, {"1", dtype_by_name("uint8"), 3}, {"2", dtype_by_name("int8"), 3}};
  const std::vector<Record> records = archive->records(wanted);
  const Region first = archive->content().storage(records[0], *wanted[0].dtype);
  const Region second = archive->content().storage(records[1], *wanted[1].dtype);
  EXPECT_EQ(first.bytes().text(), "bcd");
  EXPECT_EQ(second.bytes().text(), "bcd");
  EXPECT_NE(first.data(), second.data());
  EXPECT_FALSE(records[1].same_as);
  EXPECT_EQ(records[2].same_as, 1U);
}

TEST(PublishedArchive, RefusesMappingsBeyondTheirPart) {
  for (const std::string& wrong : {mapping(2, 0, 0), mapping(1, 0, 7), mapping(1, 7, 0), mapping(1, kMax, 1),
                                   mapping(1, 1, kMax), mapping(kMax, 0, 0)}) {
    EXPECT_THROW(published(wrong, 1, "", 0, {"abcdef"}), FormatError);
  }
}

TEST(PublishedArchive, RefusesWrongSharedRows) {
  for (const std::string& wrong : {row(0, 0, 2, 0), row(0, 1, 3, 0), row(0, 0, 3, 2), row(0, 0, 3, kMax)}) {
    EXPECT_THROW(published(row(0, 0, 3, 0) + wrong, {"abcdef"}, 2), FormatError);
  }
}

TEST(PublishedArchive, CopiesUnalignedStorages) {
  const auto archive = published(row(0, 1, 8, 0), {"-12345678"}, 1);
  const StorageRequest wanted{"0", dtype_by_name("int64"), 8};
  const std::vector<Record> records = archive->records(std::span(&wanted, 1));
  EXPECT_EQ(archive->content().placement(records[0], *wanted.dtype).how, Placement::How::copied);
  EXPECT_EQ(archive->content().storage(records[0], *wanted.dtype).bytes().text(), "12345678");
}

TEST(PublishedArchive, RefusesStoragesBeyondTheirMapping) {
  for (const std::string& wrong : {row(0, 0, 7, 0), row(0, 7, 0, 0), row(1, 0, 0, 0), row(0, 1, kMax, 0),
                                   row(0, kMax, 1, 0), row(0, kMax, kMax, 0), row(kMax, 0, 0, 0)}) {
    EXPECT_THROW(published(wrong, {"abcdef"}, 1), FormatError);
  }
}

TEST(PublishedArchive, RefusesTablesBeyondTheFirstPart) {
  const Region first = region_of(kPickle);
  const std::vector<std::uint64_t> sizes{first.size()};
  const auto map = [&](std::size_t, Extent extent) { return first.slice(extent); };
  const std::vector<PublishedArchive::Layout> wrong{
      {{0, 1}, {0, 0}, {0, 4}},    {{5, 0}, {0, 0}, {0, 4}},
      {{0, kMax}, {0, 0}, {0, 4}}, {{0, 0}, {0, 1}, {0, 4}},
      {{0, 0}, {5, 0}, {0, 4}},    {{0, 0}, {0, kMax}, {0, 4}},
      {{0, 0}, {0, 0}, {1, 4}},    {{0, kMax / 24 + 2}, {0, 0}, {0, 4}},
      {{0, 0}, {0, 0}, {kMax, 1}}};
  for (const auto& layout : wrong) EXPECT_THROW(PublishedArchive::of(first, sizes, layout, map), FormatError);
}

TEST(PublishedArchive, RefusesOtherKeysAndSizes) {
  const auto archive = published(row(0, 0, 3, 0), {"abc"}, 1);
  for (const std::string_view key : {"1"sv, ""sv, "x"sv, "0x"sv, "-0"sv, "99999999999999999999"sv}) {
    EXPECT_THROW(text_of(*archive, key, 3), FormatError);
  }
  EXPECT_THROW(text_of(*archive, "0", 2), FormatError);
}

}  // namespace
}  // namespace zerocopy::test::published_archive_test
