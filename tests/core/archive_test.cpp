#include "checkpoint/archive.h"

#include "checkpoint/zip_archive.h"
#include "support.h"

namespace zerocopy::test::archive_test {
namespace {

const std::string kData = "\0\1\2\3\4\5\6\7\x8\x9\xa\xb\xc\xd\xe\xf"s;

std::vector<ZipRecord> records(const std::string& version = "3\n") {
  return {{"root/data.pkl", "\x80\2N."}, {"root/version", version}, {"root/data/0", kData}};
}

// Aligns a record's data to 64 bytes, plus `shift`.
std::string aligned(std::vector<ZipRecord> list, std::size_t shift = 0) {
  std::size_t at = 0;
  for (ZipRecord& record : list) {
    const std::size_t head = at + 30 + record.local.name.size() + 4;
    const std::size_t padding = (64 - head % 64) % 64 + shift;
    record.local.extra = "FB" + u16(padding) + std::string(padding, '\0');
    at = head + padding + record.bytes.size();
  }
  return zip_of(std::move(list));
}

// An archive whose local headers have been read.
class Opened {
 public:
  explicit Opened(const std::string& file, Mode mode = Mode::copy_on_write, bool map = true)
      : whole_(region_of(file)),
        archive_(Archive::open(std::make_shared<const MemorySource>(whole_),
                               map ? WholeMapper::of(whole_) : nullptr, mode)) {
    archive_->records({});
  }

  const Archive* operator->() const { return archive_.get(); }

  Record record(std::string_view key, std::uint64_t nbytes) const {
    return archive_->records(std::vector{StorageRequest{key, untyped(), nbytes}}).at(0);
  }
  Placement placement(const char* dtype) const {
    return archive_->content().placement(record("0", kData.size()), *dtype_by_name(dtype));
  }
  Region storage(const char* dtype) const {
    return archive_->content().storage(record("0", kData.size()), *dtype_by_name(dtype));
  }
  bool is_mapped(const Region& region) const {
    return region.data() >= whole_.data() && region.data() < whole_.data() + whole_.size();
  }

 private:
  Region whole_;
  std::unique_ptr<Archive> archive_;
};

using How = Placement::How;

TEST(Archive, MapsStorages) {
  const Opened archive(aligned(records()));
  EXPECT_EQ(archive.placement("complex128").how, How::mapped);
  EXPECT_TRUE(archive.is_mapped(archive.storage("float32")));
  EXPECT_EQ(archive.storage("float32").bytes().text(), kData);
  EXPECT_EQ(archive->pickle().bytes().text(), "\x80\2N.");
  EXPECT_FALSE(archive->content().big_endian());
  EXPECT_FALSE(archive->is_torchscript());
}

TEST(Archive, CopiesMisalignedStorages) {
  for (const std::size_t shift : {1U, 2U, 4U, 8U}) {
    const Opened archive(aligned(records(), shift));
    EXPECT_EQ(archive.placement("uint8").how, How::mapped);
    EXPECT_EQ(archive.placement("complex128").how, How::copied);
    EXPECT_EQ(archive.placement("float64").how, shift == 8 ? How::mapped : How::copied);
    EXPECT_EQ(archive.storage("complex128").bytes().text(), kData);
    EXPECT_FALSE(archive.is_mapped(archive.storage("complex128")));
  }
}

TEST(Archive, CopiesWithoutAMapping) {
  const Opened archive(aligned(records()), Mode::copy_on_write, false);
  EXPECT_EQ(archive.placement("uint8").how, How::copied);
  EXPECT_EQ(archive.storage("uint8").bytes().text(), kData);
}

TEST(Archive, Inflates) {
  std::vector<ZipRecord> list = records();
  list[2] = ZipRecord("root/data/0", "\1\x10\0\xef\xff"s + kData, 8, kData.size());  // one stored block
  const Opened archive(aligned(list));
  EXPECT_EQ(archive.placement("uint8").how, How::inflated);
  EXPECT_EQ(archive.storage("uint8").bytes().text(), kData);
}

TEST(Archive, SharedModeMapsOrRefuses) {
  EXPECT_TRUE(Opened(aligned(records()), Mode::shared).storage("float32").size() != 0);
  EXPECT_THROW(Opened(aligned(records(), 1), Mode::shared).storage("float32"), UnsupportedError);
}

TEST(Archive, SwapsBigEndian) {
  std::vector<ZipRecord> list = records();
  list.emplace_back("root/byteorder", "big");
  const Opened archive(aligned(list));
  EXPECT_TRUE(archive->content().big_endian());
  EXPECT_EQ(archive.placement("uint8").how, How::mapped);
  EXPECT_EQ(archive.placement("float32").how, How::copied);
  EXPECT_EQ(archive.storage("uint8").bytes().text(), kData);
  EXPECT_EQ(archive.storage("int16").bytes().text().substr(0, 4), "\1\0\3\2"s);
  EXPECT_EQ(archive.storage("complex64").bytes().text().substr(0, 8), "\3\2\1\0\7\6\5\4"s);
}

TEST(Archive, ByteOrders) {
  for (const auto* order : {"middle", "", "Little", "little\n", "bigger"}) {
    std::vector<ZipRecord> list = records();
    list.emplace_back("root/byteorder", order);
    EXPECT_THROW(Opened(zip_of(list)), FormatError) << order;
  }
  std::vector<ZipRecord> list = records();
  list.emplace_back("root/byteorder", "little");
  EXPECT_FALSE(Opened(zip_of(list))->content().big_endian());
}

TEST(Archive, Versions) {
  for (const auto* good : {"1", "3", "3\n", "10", "03"})
    EXPECT_NO_THROW(Opened(zip_of(records(good)))) << good;
  for (const auto* bad : {"", "\n", "0", "-1", "+3", "three", "3x", " 3", "3.0", "111111111111111111111"}) {
    EXPECT_THROW(Opened(zip_of(records(bad))), FormatError) << bad;
  }
  EXPECT_THROW(Opened(zip_of(records(std::string(100'000, '1')))), FormatError);
  for (const auto* newer : {"11", "99999", "18446744073709551619", "99999999999999999999"}) {
    EXPECT_THROW(Opened(zip_of(records(newer))), UnsupportedError) << newer;
  }
  std::vector<ZipRecord> list = records();
  list.erase(list.begin() + 1);
  EXPECT_THROW(Opened(zip_of(list)), FormatError);
}

TEST(Archive, StorageRecords) {
  const Opened archive(zip_of(records()));
  EXPECT_THROW(archive.record("0", 15), FormatError);
  EXPECT_THROW(archive.record("0", 17), FormatError);
  EXPECT_THROW(archive.record("0", 0), FormatError);
  for (const auto key : {""sv, "1"sv, " 0"sv, "../version"sv, "/etc/passwd"sv, "0\0"sv}) {
    EXPECT_THROW(archive.record(key, kData.size()), FormatError) << quote(key);
  }
  const std::string message = message_of<FormatError>([&] { archive.record(std::string(70'000, 'k'), 16); });
  EXPECT_LT(message.size(), 400U);
}

TEST(Archive, ChecksALocalHeaderWhenItsRecordIsUsed) {
  const auto found_in = [](std::size_t damaged) {
    std::vector<ZipRecord> list = records();
    list.emplace_back("root/data/1", std::string(kData));
    list[damaged].local.name[5] = 'X';
    const Region whole = region_of(zip_of(list));
    auto archive = Archive::open(std::make_shared<const MemorySource>(whole), nullptr, Mode::copy_on_write);
    const std::vector<StorageRequest> both{{"0", untyped(), kData.size()}, {"1", untyped(), kData.size()}};
    EXPECT_THROW(archive->records(both), FormatError);
    StorageRecords found = archive->found_records(both);
    return std::pair(std::move(archive), std::move(found));
  };
  const auto [archive, found] = found_in(3);
  EXPECT_EQ(archive->content().read(found.at(0)).bytes().text(), kData);
  EXPECT_THROW(found.at(1), FormatError);
  std::vector<ZipRecord> list = records();
  list.emplace_back("root/other", "");
  list.back().local.name[5] = 'X';
  auto other = Archive::open(std::make_shared<const MemorySource>(region_of(zip_of(list))), nullptr,
                             Mode::copy_on_write);
  EXPECT_THROW(other->found_records({}), FormatError) << "no storage has this record";
}

TEST(Archive, TorchScript) {
  std::vector<ZipRecord> list = records();
  list.emplace_back("root/constants.pkl", "");
  EXPECT_TRUE(Opened(zip_of(list))->is_torchscript());
}

TEST(ZipArchive, RecordsOfSeveralPickles) {
  std::vector<ZipRecord> list = records();
  list.emplace_back("root/constants.pkl", "\x80\2).");
  list.emplace_back("root/constants/0", "abcd");
  list.emplace_back("root/constants/1", "efghijkl");
  ZipArchive archive(
      Content(std::make_shared<const MemorySource>(region_of(zip_of(list))), nullptr, Mode::copy_on_write));
  const std::vector wanted{StorageRequest{"1", untyped(), 8}, StorageRequest{"0", untyped(), 4}};
  const std::vector<Record> found = archive.records_in("constants/", wanted);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(archive.content().read(found[0]).bytes().text(), "efghijkl");
  EXPECT_EQ(archive.content().read(found[1]).bytes().text(), "abcd");
  EXPECT_EQ(archive.read(archive.directory().find("constants.pkl").value()).bytes().text(), "\x80\2).");
  EXPECT_THROW(archive.records_in("data/", wanted), FormatError);  // the sizes differ there
  EXPECT_THROW(archive.records_in("", wanted), FormatError);       // the records are in the folder
  EXPECT_THROW(archive.records_in("constants", wanted), FormatError);
  EXPECT_THROW(archive.records_in("constants/", std::vector{StorageRequest{"0", untyped(), 8}}), FormatError);
  EXPECT_THROW(archive.records_in("constants/", std::vector{StorageRequest{"2", untyped(), 0}}), FormatError);
}

TEST(Archive, NoPickle) {
  std::vector<ZipRecord> list = records();
  list.erase(list.begin());
  EXPECT_THROW(Opened(zip_of(list))->pickle(), FormatError);
}

TEST(Archive, RefusesEveryCut) {
  refuses_every_cut<FormatError>(aligned(records()),
                                 [](std::string_view file) { Opened{std::string(file)}; });
}

// Uses enough records to start a thread. One record is wrong, and the archive may be destroyed
// first.
TEST(Archive, ManyRecords) {
  std::vector<ZipRecord> list = records();
  for (int i = 0; i < 3000; ++i) list.emplace_back("root/extra/" + std::to_string(i), "");
  EXPECT_NO_THROW(Opened(zip_of(list)));
  list.back().local.name.back() = 'x';
  EXPECT_THROW(Opened(zip_of(list)), FormatError);
  const std::string file = zip_of(list);
  for (int i = 0; i < 20; ++i) Archive::open(source_of(file), nullptr, Mode::copy_on_write);
}

}  // namespace
}  // namespace zerocopy::test::archive_test
