#include "checkpoint/published_archive.h"

#include <unistd.h>

#include "memory/lease.h"
#include "support.h"

namespace zerocopy::test {
namespace {

constexpr std::string_view kPickle = "\x80\x02N."sv;

std::string row(std::uint64_t part, std::uint64_t offset, std::uint64_t size) {
  return u64(part) + u64(offset) + u64(size);
}

std::unique_ptr<PublishedArchive> published(const std::string& table, const std::vector<std::string>& others,
                                            std::uint64_t rows) {
  std::vector<Region> parts{region_of(table + std::string(kPickle))};
  for (const std::string& other : others) parts.push_back(region_of(other));
  return PublishedArchive::of(std::move(parts), {0, rows, {table.size(), kPickle.size()}});
}

std::string text_of(Archive& archive, std::string_view key, std::uint64_t size) {
  const Wanted wanted{key, dtype_by_name("uint8"), size};
  const std::vector<Record> records = archive.records(std::span(&wanted, 1));
  return std::string(archive.content().storage(records[0], *dtype_by_name("uint8")).bytes().text());
}

TEST(PublishedArchive, StoragesLieInTheirParts) {
  const auto archive = published(row(1, 2, 3) + row(2, 0, 5) + row(1, 6, 0), {"abcdef", "hello"}, 3);
  EXPECT_EQ(text_of(*archive, "0", 3), "cde");
  EXPECT_EQ(text_of(*archive, "1", 5), "hello");
  EXPECT_EQ(text_of(*archive, "2", 0), "");
  EXPECT_TRUE(archive->document(false).root.is(Kind::none));
}

TEST(PublishedArchive, WhatIsNotAlignedIsCopied) {
  const auto archive = published(row(1, 1, 8), {"-12345678"}, 1);
  const Wanted wanted{"0", dtype_by_name("int64"), 8};
  const std::vector<Record> records = archive->records(std::span(&wanted, 1));
  EXPECT_EQ(archive->content().placement(records[0], *wanted.dtype).how, Placement::How::copied);
  EXPECT_EQ(archive->content().storage(records[0], *wanted.dtype).bytes().text(), "12345678");
}

TEST(PublishedArchive, RefusesRowsThatLeaveTheirPart) {
  const std::uint64_t most = ~std::uint64_t{0};
  for (const std::string& wrong : {row(1, 0, 7), row(1, 7, 0), row(2, 0, 0), row(1, 1, most), row(1, most, 1),
                                   row(1, most, most), row(most, 0, 0)}) {
    EXPECT_THROW(published(wrong, {"abcdef"}, 1), FormatError);
  }
}

TEST(PublishedArchive, RefusesLayoutsThatLeaveTheFirstPart) {
  const Region first = region_of(kPickle);
  const std::uint64_t most = ~std::uint64_t{0};
  const std::vector<PublishedArchive::Layout> wrong{{0, 1, {0, 4}},    {5, 0, {0, 4}},
                                                    {0, most, {0, 4}}, {0, most / 24 + 2, {0, 4}},
                                                    {0, 0, {1, 4}},    {0, 0, {most, 1}}};
  for (const auto& layout : wrong) EXPECT_THROW(PublishedArchive::of({first}, layout), FormatError);
  EXPECT_THROW(PublishedArchive::of({}, {0, 0, {0, 0}}), FormatError);
}

TEST(PublishedArchive, RefusesOtherKeysAndSizes) {
  const auto archive = published(row(1, 0, 3), {"abc"}, 1);
  for (const std::string_view key : {"1"sv, ""sv, "x"sv, "0x"sv, "-0"sv, "99999999999999999999"sv}) {
    EXPECT_THROW(text_of(*archive, key, 3), FormatError);
  }
  EXPECT_THROW(text_of(*archive, "0", 2), FormatError);
}

TEST(Lease, EndsWithTheLastByte) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Region kept;
  {
    const auto lease = std::make_shared<const Lease>(ends[1]);
    ::close(ends[1]);
    kept = leased(region_of("abc"), lease).slice({1, 1});
  }
  EXPECT_EQ(kept.bytes().text(), "b");
  // Nothing was ever written, and a reader would wait as long as somebody could.
  kept = {};
  char byte = 0;
  EXPECT_EQ(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
  EXPECT_THROW(Lease(-1), FileError);
}

}  // namespace
}  // namespace zerocopy::test
