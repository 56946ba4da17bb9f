#include "checkpoint/legacy_archive.h"
#include "pickle/machine.h"
#include "support.h"

namespace zerocopy::test::legacy_test {
namespace {

const std::string kMagic = "\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.";
const std::string kVersion = "\x80\2M\xe9\3.";
const std::string kSysInfo = "\x80\2}.";
const std::string kObject = "\x80\2N.";

std::string keys(const std::vector<std::string>& names) {
  std::string pickle = "\x80\2](";
  for (const std::string& name : names) pickle += "X" + u32(name.size()) + name;
  return pickle + "e.";
}

std::string data(std::uint64_t count, const std::string& bytes) { return u64(count) + bytes; }

const std::string kHead = kMagic + kVersion + kSysInfo + kObject;
const std::string kFile = kHead + keys({"a", "b"}) + data(2, "12345678") + data(3, "xyz");

StorageRequest wanted(std::string_view key, const char* dtype, std::uint64_t nbytes) {
  return {key, dtype_by_name(dtype), nbytes};
}
const std::vector<StorageRequest> kWanted{wanted("b", "uint8", 3), wanted("a", "float32", 8)};

// Returns the bytes of all records, in order.
std::string contents(const std::string& file, const std::vector<StorageRequest>& storages = kWanted,
                     std::uint64_t* end = nullptr) {
  const auto archive = Archive::open(source_of(file), nullptr, Mode::copy_on_write);
  std::string all;
  for (const Record& record : archive->records(storages))
    all += archive->content().read(record).bytes().text();
  if (end != nullptr) *end = archive->end();
  return all;
}

TEST(LegacyArchive, FindsStorages) {
  std::uint64_t end = 0;
  EXPECT_EQ(contents(kFile, kWanted, &end), "xyz12345678");
  EXPECT_EQ(end, kFile.size());
  EXPECT_EQ(contents(kFile + "trailing", kWanted, &end), "xyz12345678");
  EXPECT_EQ(end, kFile.size());
}

TEST(LegacyArchive, Recognises) {
  const auto archive = Archive::open(source_of(kFile), nullptr, Mode::copy_on_write);
  EXPECT_EQ(archive->container(), "legacy"sv);
  EXPECT_EQ(archive->pickle().bytes().text(), kObject);
  EXPECT_FALSE(archive->is_torchscript());
  for (const auto& other : {""s, "PK\3\4"s, kVersion, "\x80\2N."s}) {
    EXPECT_FALSE(LegacyArchive::recognises(*source_of(other)));
  }
}

TEST(LegacyArchive, EveryProtocol) {
  for (const auto& magic :
       {"L119547037146038801333356L\n."s, "\x80\4\x95\x0d\0\0\0\0\0\0\0"s + kMagic.substr(2)}) {
    for (const auto& version : {"I1001\n."s, "\x80\4\x95\4\0\0\0\0\0\0\0M\xe9\3."s}) {
      EXPECT_EQ(contents(magic + version + kSysInfo + kObject + keys({"a", "b"}) + data(2, "12345678") +
                         data(3, "xyz")),
                "xyz12345678");
    }
  }
}

// torch's reader takes the magic number from any pickle that evaluates to it.
TEST(LegacyArchive, RecognisesEveryEncodingOfTheMagic) {
  const std::string number = kMagic.substr(0, kMagic.size() - 1);
  for (const auto& magic : {number + "q\0."s, number + "q\0h\0."s, number.substr(2) + "."s,
                            "\x80\2X" + u32(5000) + std::string(5000, 'x') + number.substr(2) + "."s}) {
    EXPECT_EQ(contents(magic + kFile.substr(kMagic.size())), "xyz12345678") << quote(magic);
  }
}

TEST(LegacyArchive, RefusesEveryCut) {
  refuses_every_cut<FormatError>(kFile, [](std::string_view file) { contents(std::string(file)); });
}

TEST(LegacyArchive, RefusesOtherVersionsAndCode) {
  EXPECT_THROW(contents(kMagic + "\x80\2M\xea\3." + kSysInfo + kObject + keys({}), {}), FormatError);
  EXPECT_THROW(contents(kMagic + kVersion + "cos\nsystem\n." + kObject + keys({}), {}), RefusedError);
  EXPECT_THROW(contents(kHead + "cos\nsystem\n.", {}), RefusedError);
  EXPECT_THROW(contents(kHead + "](cos\nsystem\ne.", {}), RefusedError);
}

TEST(LegacyArchive, RefusesKeysThatDoNotAgree) {
  const std::string bytes = data(2, "12345678") + data(3, "xyz");
  EXPECT_THROW(contents(kHead + keys({"a"}) + bytes), FormatError);            // a key without data
  EXPECT_THROW(contents(kHead + keys({"a", "b", "c"}) + bytes), FormatError);  // data without a key
  EXPECT_THROW(contents(kHead + keys({"a", "a"}) + bytes), FormatError);
  EXPECT_THROW(contents(kHead + "K\1." + bytes), FormatError);
  EXPECT_THROW(contents(kHead + "]K\1a." + bytes), FormatError);
}

TEST(LegacyArchive, EmptyStoragesMayShareAKey) {
  const std::vector<StorageRequest> wanted_twice{wanted("a", "float32", 0), wanted("a", "float64", 0)};
  EXPECT_EQ(contents(kHead + keys({"a"}) + data(0, ""), wanted_twice), "");
}

TEST(LegacyArchive, RecordsCanBeReadTwice) {
  const auto archive = Archive::open(source_of(kFile), nullptr, Mode::copy_on_write);
  const auto first = archive->records(kWanted);
  const auto second = archive->records(kWanted);
  EXPECT_EQ(first[0].extent.offset, second[0].extent.offset);
  EXPECT_EQ(archive->end(), kFile.size());
}

TEST(LegacyArchive, RefusesOtherCounts) {
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{8},
                                    ~std::uint64_t{0}, (std::uint64_t{1} << 62U) + 2}) {
    EXPECT_THROW(contents(kHead + keys({"a", "b"}) + data(count, "12345678") + data(3, "xyz")), FormatError);
  }
}

TEST(LegacyArchive, RefusesAZipArchiveAfterIt) {
  EXPECT_THROW(contents(kFile + zip_of({{"root/data.pkl", kObject}})), FormatError);
}

TEST(LegacyIds, Views) {
  const auto id = [](const std::string& view) {
    return "(X"s + u32(7) + "storagectorch\nFloatStorage\nX" + u32(1) + "kX" + u32(3) + "cpuK\x0a" + view +
           "tQ";
  };
  const auto read = [](const std::string& pickle) {
    return read_pickle(region_of(pickle), {.ids = PersistentId::storage_with_view});
  };
  const std::string view = "X" + u32(1) + "vK\2K\3\x87";
  const Document document = read("\x80\2(" + id(view) + id("N") + id(view) + "t.");
  ASSERT_EQ(document.storages.size(), 1U);
  ASSERT_EQ(document.views.size(), 1U);
  EXPECT_EQ(document.views[0]->root, document.storages[0]);
  EXPECT_EQ(document.views[0]->begin, 8U);
  EXPECT_EQ(document.views[0]->nbytes, 12U);
  for (const auto& bad : {"vK\2K\x09\x87"s, "vJ\xff\xff\xff\xffK\3\x87"s, "vK\2J\xff\xff\xff\xff\x87"s,
                          "vK\2NNt"s, "kK\2K\3\x87"s}) {
    EXPECT_THROW(read("\x80\2" + id("X" + u32(1) + bad) + "."), FormatError) << quote(bad);
  }
  EXPECT_THROW(read("\x80\2" + id("") + "."), FormatError);
  EXPECT_THROW(read_pickle(region_of("\x80\2" + id("N") + ".")), FormatError);
}

}  // namespace
}  // namespace zerocopy::test::legacy_test
