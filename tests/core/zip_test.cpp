#include "container/zip.h"

#include "container/zip_end.h"
#include "support.h"

namespace zerocopy::test::zip_test {
namespace {

const std::string kContent = "the content";

std::vector<ZipRecord> two() { return {{"root/first", kContent}, {"root/second", "2"}}; }

// Reads the directory and each local header.
std::size_t read_all(std::string_view file) {
  const Zip zip(source_of(file));
  for (std::size_t i = 0; i < zip.count(); ++i) zip.record(i);
  return zip.count();
}

template <typename Change>
std::string changed(Change change) {
  std::vector<ZipRecord> records = two();
  change(records[0]);
  return zip_of(records);
}

#define EXPECT_REFUSED(file) EXPECT_THROW(read_all(file), FormatError)
#define EXPECT_UNSUPPORTED(file) EXPECT_THROW(read_all(file), UnsupportedError)

TEST(Zip, ReadsRecords) {
  const std::string file = zip_of(two());
  const Zip zip(source_of(file));
  EXPECT_EQ(zip.root(), "root");
  ASSERT_EQ(zip.count(), 2U);
  EXPECT_EQ(zip.name(0), "first");
  const auto found = zip.find("first");
  ASSERT_TRUE(found);
  const Record record = zip.record(*found);
  EXPECT_EQ(record.name, "first");
  EXPECT_EQ(record.encoding, Encoding::stored);
  EXPECT_EQ(file.substr(record.extent.offset, record.extent.size), kContent);
  EXPECT_EQ(record.size, kContent.size());
}

TEST(Zip, FindsByExactName) {
  const Zip zip(source_of(zip_of({{"root/first", ""}, {"root/", ""}, {"root/folder/", ""}})));
  EXPECT_TRUE(zip.find("first"));
  for (const auto* name : {"firs", "first ", "root/first", "", "folder/", "folder", "../first"}) {
    EXPECT_FALSE(zip.find(name)) << name;
  }
  EXPECT_TRUE(zip.contains("first"));
  EXPECT_FALSE(zip.contains("FIRST"));
  EXPECT_THROW(zip.find("FIRST"), FormatError);
}

TEST(Zip, RefusesEveryCut) {
  refuses_every_cut<FormatError>(zip_of(two()), read_all);
  ZipEndFields end;
  const std::string body = zip_body(two(), end);
  const std::string zip64 = "PK\6\6"s + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(2) + u64(2) +
                            u64(end.size) + u64(end.offset) + "PK\6\7" + u32(0) + u64(body.size()) + u32(1);
  refuses_every_cut<FormatError>(body + zip64 + end.record(), read_all);
}

// Checks that no flipped byte crashes or hangs the reader. Sanitizers check the bounds.
TEST(Zip, SurvivesEveryFlip) {
  const std::string good = zip_of(two(), "comment");
  std::size_t refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (unsigned mask = 1; mask < 256; ++mask) {
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ mask);
      try {
        read_all(bad);
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, good.size() * 100);
}

// As torch's reader, which searches the last 69,584 bytes for the signature.
TEST(ZipEnd, BytesBeforeOrAfter) {
  const std::string good = zip_of(two());
  EXPECT_REFUSED("x" + good);
  EXPECT_EQ(Zip(source_of(good + "x")).behind(), 1U);
  EXPECT_EQ(Zip(source_of(zip_of(two(), "comment"))).behind(), 0U);
  EXPECT_EQ(read_all(good + "PK\5\6" + std::string(17, '\0')), 2U);
  EXPECT_REFUSED(good + "PK\5\6" + std::string(18, '\0'));
  EXPECT_REFUSED(good + good);
  EXPECT_EQ(read_all(good + std::string(69'562, '\0')), 2U);
  EXPECT_REFUSED(good + std::string(69'563, '\0'));
  EXPECT_EQ(read_all(zip_of(two(), std::string(65535, 'x'))), 2U);
  EXPECT_REFUSED(zip_of(two(), ZipEndFields().record()));
  EXPECT_REFUSED(ZipEndFields().record());
  EXPECT_REFUSED(std::string(100, '\0'));
  EXPECT_REFUSED("");
}

TEST(ZipEnd, RefusesWrongFields) {
  ZipEndFields good;
  const std::string body = zip_body(two(), good);
  const auto with = [&](auto change) {
    ZipEndFields end = good;
    change(end);
    return body + end.record();
  };
  EXPECT_EQ(read_all(with([](auto&) {})), 2U);
  EXPECT_REFUSED(with([](auto& end) { end.entries = end.here = 3; }));
  EXPECT_REFUSED(with([](auto& end) { end.entries = end.here = 1; }));
  EXPECT_REFUSED(with([](auto& end) { end.entries = end.here = 0; }));
  EXPECT_REFUSED(with([](auto& end) { end.entries = end.here = 0xFFFF; }));
  EXPECT_REFUSED(with([](auto& end) { end.here = 1; }));
  EXPECT_REFUSED(with([](auto& end) { end.disk = 1; }));
  EXPECT_REFUSED(with([](auto& end) { end.directory_disk = 1; }));
  EXPECT_REFUSED(with([](auto& end) { ++end.size; }));
  EXPECT_REFUSED(with([](auto& end) { --end.size; }));
  EXPECT_REFUSED(with([](auto& end) { end.size = kOnes; }));
  EXPECT_REFUSED(with([](auto& end) { ++end.offset; }));
  EXPECT_REFUSED(with([](auto& end) { --end.offset; }));
  EXPECT_REFUSED(with([](auto& end) { end.offset = kOnes; }));
}

TEST(ZipEnd, RefusesWrongZip64Fields) {
  struct Wide {
    std::uint64_t record_size = 44, disk = 0, here = 2, entries = 2, size, offset, locator_disk = 0, at,
                  disks = 1;
  };
  ZipEndFields good;
  const std::string body = zip_body(two(), good);
  const auto with = [&](auto change) {
    Wide wide{.size = good.size, .offset = good.offset, .at = body.size()};
    ZipEndFields end = good;
    change(wide, end);
    return body + "PK\6\6" + u64(wide.record_size) + u16(45) + u16(45) + u32(wide.disk) + u32(0) +
           u64(wide.here) + u64(wide.entries) + u64(wide.size) + u64(wide.offset) + "PK\6\7" +
           u32(wide.locator_disk) + u64(wide.at) + u32(wide.disks) + end.record();
  };
  EXPECT_EQ(read_all(with([](auto&, auto&) {})), 2U);
  EXPECT_EQ(read_all(with([](auto&, auto& end) { end = {0, 0, 0xFFFF, 0xFFFF, kOnes, kOnes}; })), 2U);
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.record_size = 43; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.record_size = ~std::uint64_t{0}; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.disk = 1; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.locator_disk = 1; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.disks = 2; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.entries = 3; }));
  EXPECT_REFUSED(with([](auto& wide, auto& end) {
    wide.entries = wide.here = std::uint64_t{1} << 63U;
    end.entries = end.here = 0xFFFF;
  }));
  EXPECT_REFUSED(with([](auto& wide, auto& end) {
    wide.size = std::uint64_t{1} << 63U;
    end.size = kOnes;
  }));
  EXPECT_REFUSED(with([](auto& wide, auto& end) {
    wide.offset = ~std::uint64_t{0} - 99;
    wide.size = 200;
    end.offset = end.size = kOnes;
  }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.at = 0; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { ++wide.at; }));
  EXPECT_REFUSED(with([](auto& wide, auto&) { wide.at = ~std::uint64_t{0}; }));
}

TEST(ZipEntry, Zip64Field) {
  const std::uint64_t size = kContent.size();
  const auto with = [&](const std::string& extra, std::uint64_t narrow) {
    return changed([&](ZipRecord& record) {
      record.central.size = record.central.stored_size = narrow;
      record.central.extra = extra;
    });
  };
  const std::string field = u16(1) + u16(16) + u64(size) + u64(size);
  EXPECT_EQ(read_all(with(field, kOnes)), 2U);
  EXPECT_EQ(read_all(with(u16(0x9999) + u16(2) + "xx" + field, kOnes)), 2U);
  EXPECT_REFUSED(with("", kOnes));
  EXPECT_REFUSED(with(field + field, kOnes));
  EXPECT_REFUSED(with(field, size));  // no size needs it
  EXPECT_REFUSED(with(u16(1) + u16(8) + u64(size), kOnes));
  EXPECT_REFUSED(with(u16(1) + u16(16) + u64(size), kOnes));
  EXPECT_REFUSED(with(u16(1) + u16(0), size));
  for (const std::uint64_t bad : {std::uint64_t{1} << 63U, ~std::uint64_t{0}, ~std::uint64_t{0} - 40}) {
    EXPECT_REFUSED(with(u16(1) + u16(16) + u64(bad) + u64(bad), kOnes));
  }
}

TEST(ZipEntry, RefusesWrongDirectories) {
  const auto with = [](auto change) { return changed([&](ZipRecord& record) { change(record.central); }); };
  EXPECT_REFUSED(with([](Header& h) { h.size = 5; }));
  EXPECT_REFUSED(with([](Header& h) { h.stored_size = 5; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = 5; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = 50; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = 1'000'000; }));
  EXPECT_REFUSED(with([](Header& h) { h.disk = 1; }));
  EXPECT_REFUSED(with([](Header& h) { h.disk = 0xFFFF; }));
  EXPECT_REFUSED(with([](Header& h) { h.attributes = 0x10; }));
  EXPECT_EQ(read_all(with([](Header& h) { h.attributes = 0x20; })), 2U);
  EXPECT_EQ(read_all(with([](Header& h) { h.comment = "hello"; })), 2U);
  for (const std::uint64_t flag : {0x1U, 0x20U, 0x40U, 0x2000U}) {
    EXPECT_UNSUPPORTED(with([&](Header& h) { h.flags = flag; }));
  }
  for (const std::uint64_t method : {1U, 9U, 12U, 14U, 93U, 95U, 99U, 0xFFFFU}) {
    EXPECT_UNSUPPORTED(with([&](Header& h) { h.method = method; }));
  }
  EXPECT_REFUSED(with([](Header& h) { h.method = 8, h.size = 1'000'000; }));  // an impossible ratio
  for (const std::uint64_t offset : {1U, 30U, 51U, 100'000U, kOnes}) {
    EXPECT_REFUSED(
        changed([&](ZipRecord& record) { record.central.header = offset, record.keep_offset = true; }));
  }
}

TEST(ZipEntry, RefusesDifferentLocalHeaders) {
  const auto with = [](auto change) { return changed([&](ZipRecord& record) { change(record.local); }); };
  EXPECT_REFUSED(with([](Header& h) { h.name = "root/other"; }));
  EXPECT_REFUSED(with([](Header& h) { h.name = "root/First"; }));
  EXPECT_REFUSED(with([](Header& h) { h.method = 8; }));
  EXPECT_REFUSED(with([](Header& h) { h.flags = 1; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = 5; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = 0; }));
  EXPECT_REFUSED(with([](Header& h) { h.size = h.stored_size = kOnes; }));
  EXPECT_EQ(read_all(with([](Header& h) { h.extra = "FB"s + u16(3) + "abc"; })), 2U);
  const std::uint64_t size = kContent.size();
  EXPECT_EQ(read_all(with([&](Header& h) {
              h.size = h.stored_size = kOnes;
              h.extra = u16(1) + u16(16) + u64(size) + u64(size);
            })),
            2U);
  EXPECT_REFUSED(with([&](Header& h) {
    h.size = h.stored_size = kOnes;
    h.extra = u16(1) + u16(16) + u64(size) + u64(size + 1);
  }));
}

TEST(ZipEntry, Descriptors) {
  for (const std::size_t size : {0U, 12U, 16U, 20U, 24U}) {
    EXPECT_EQ(read_all(changed([&](ZipRecord& record) {
                record.local.flags = record.central.flags = 8;
                record.local.size = record.local.stored_size = 0;
                record.after = std::string(size, 'd');
              })),
              2U);
  }
  for (const std::size_t size : {12U, 16U, 20U, 24U}) {  // without flag bit 3
    EXPECT_REFUSED(changed([&](ZipRecord& record) { record.after = std::string(size, 'd'); }));
  }
  for (const std::size_t size : {1U, 11U, 13U, 25U, 100'000U}) {
    EXPECT_REFUSED(changed([&](ZipRecord& record) {
      record.local.flags = record.central.flags = 8;
      record.after = std::string(size, 'd');
    }));
  }
}

TEST(ZipEntry, Overlap) {
  std::vector<ZipRecord> records = two();
  records.emplace_back("root/third", "");
  records[2].keep_offset = true;
  for (std::uint64_t offset = 0; offset < 93; ++offset) {  // 93 is the right offset
    records[2].central.header = offset;
    EXPECT_REFUSED(zip_of(records)) << offset;
  }
}

TEST(ZipNames, Refused) {
  for (const auto name :
       {""sv, "root"sv, "/root/x"sv, "other/x"sv, "root2/x"sv, "Root/x"sv, "root\\x"sv, "root/a\\b"sv,
        "root/a\0b"sv, "root/\xff"sv, "root/\xed\xa0\x80"sv, "root/first"sv, "root/FIRST"sv}) {
    std::vector<ZipRecord> records = two();
    records.emplace_back(std::string(name), "");
    EXPECT_REFUSED(zip_of(records)) << quote(name);
  }
  EXPECT_REFUSED(zip_of({{"first", "x"}}));
  EXPECT_REFUSED(zip_of({{"/first", "x"}}));
  EXPECT_REFUSED(zip_of({{"root/first", "x"}, {"root/folder/", "holds bytes"}}));
}

TEST(ZipNames, AllowsAnyKey) {
  for (const auto name :
       {"root/../../x"sv, "root/a\nb"sv, "root//x"sv, "root/\xc3\xa4"sv, "root/"sv, "root/folder/"sv}) {
    std::vector<ZipRecord> records = two();
    records.emplace_back(std::string(name), "");
    EXPECT_EQ(read_all(zip_of(records)), 3U) << quote(name);
  }
  EXPECT_EQ(read_all(zip_of({{"root/" + std::string(60'000, 'x'), "content"}})), 1U);
}

#undef EXPECT_REFUSED
#undef EXPECT_UNSUPPORTED

}  // namespace
}  // namespace zerocopy::test::zip_test
