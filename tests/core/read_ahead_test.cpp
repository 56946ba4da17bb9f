// Reading a mapped file ahead, reading past the page cache, and which file systems are far away.
#include "io/read_ahead.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <tuple>

#include "io/direct.h"
#include "io/file_part.h"
#include "io/file_system.h"
#include "io/maps.h"
#include "support.h"

namespace zerocopy::test::read_ahead_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::chrono::milliseconds kLong{60'000};
const auto kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

class AheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    content_.resize(13 * kMiB + 123);
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 7 + (i >> 12U));
    std::ofstream(path_, std::ios::binary) << content_;
  }
  void TearDown() override { std::remove(path_.c_str()); }

  File open() const { return File::open(path_, File::Access::read); }
  void cut(std::uint64_t size) const { ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0); }
  std::string_view from(std::uint64_t offset, std::uint64_t size) const {
    return std::string_view(content_).substr(offset, size);
  }

  std::string path_ = ::testing::TempDir() + "zerocopy_ahead_" + std::to_string(::getpid());
  std::string content_;
};

std::shared_ptr<ReadAhead> ahead_of(const std::string& path, File file) {
  Region whole = map_file(file, 0, Mode::read_only);
  std::vector<MappedPart> parts;
  parts.push_back({std::move(whole), 0, std::move(file), path});
  return ReadAhead::start(std::move(parts), 4);
}

TEST_F(AheadTest, FillsAMapping) {
  const File file = open();
  const Region part = map_extent(file, {4097, 9 * kMiB}, Mode::copy_on_write);
  read_ahead(file, 4097, part, {.threads = 4, .on_progress = {}});
  EXPECT_EQ(part.bytes().text(), from(4097, 9 * kMiB));
}

// qemu-user returns 0 for any advice, and follows none. Its pages may have another size than those of
// /proc/self/pagemap.
bool is_emulated() { return ::madvise(nullptr, kPage, -1) == 0; }

TEST_F(AheadTest, WrittenPagesDoNotBelongToTheFile) {
  if (is_emulated()) GTEST_SKIP() << "/proc/self/pagemap is that of the emulator";
  const Region whole = map_file(open(), 0, Mode::copy_on_write);
  const int pagemap = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(pagemap, 0);
  // NOLINTNEXTLINE(*-reinterpret-cast): the address to look up
  const auto begin = reinterpret_cast<std::uintptr_t>(whole.data());
  EXPECT_EQ(whole.bytes().text(), content_);  // this reads every page
  EXPECT_TRUE(is_unwritten(pagemap, begin, whole.size()));
  whole.data()[9 * kMiB] = std::byte{1};
  EXPECT_FALSE(is_unwritten(pagemap, begin, whole.size()));
  EXPECT_FALSE(is_unwritten(pagemap, begin + 9 * kMiB + kPage - 1, 1));
  EXPECT_FALSE(is_unwritten(pagemap, begin + 9 * kMiB - 1, 2));
  EXPECT_TRUE(is_unwritten(pagemap, begin, 9 * kMiB));
  EXPECT_TRUE(is_unwritten(pagemap, begin + 9 * kMiB + kPage, whole.size() - 9 * kMiB - kPage));
  EXPECT_FALSE(is_unwritten(-1, begin, 1));
  ::close(pagemap);
}

TEST_F(AheadTest, TruncatedFileThrows) {
  if (is_emulated()) GTEST_SKIP() << "madvise does nothing here";
  const File file = open();
  const Region whole = map_file(file, 0, Mode::read_only);
  cut(5 * kMiB);
  EXPECT_THROW(read_ahead(file, 0, whole, {.threads = 4, .on_progress = {}}), FileError);
}

TEST_F(AheadTest, InTheBackground) {
  const auto reading = ahead_of(path_, open());
  EXPECT_EQ(reading->size(), content_.size());
  EXPECT_TRUE(reading->wait_for(kLong));
  EXPECT_NO_THROW(reading->rethrow());
  EXPECT_EQ(reading->done(), content_.size());
}

TEST_F(AheadTest, TruncatedFileInTheBackground) {
  if (is_emulated()) GTEST_SKIP() << "madvise does nothing here";
  File file = open();
  const Region whole = map_file(file, 0, Mode::read_only);
  cut(5 * kMiB);
  std::vector<MappedPart> parts;
  parts.push_back({whole, 0, std::move(file), path_});
  const auto reading = ReadAhead::start(std::move(parts), 4);
  ASSERT_TRUE(reading->wait_for(kLong));
  EXPECT_THROW(reading->rethrow(), FileError);
}

TEST_F(AheadTest, CancelAndRelease) {
  for (int round = 0; round < 20; ++round) {
    const auto reading = ahead_of(path_, open());
    reading->cancel();
    if (round % 2 != 0) continue;  // no thread waits
    EXPECT_TRUE(reading->wait_for(kLong));
    EXPECT_NO_THROW(reading->rethrow());
  }
}

// Returns whether the page at an offset is in the page cache.
bool is_cached(const Region& mapped, std::uint64_t offset) {
  unsigned char resident = 0;
  EXPECT_EQ(::mincore(mapped.data() + offset / kPage * kPage, 1, &resident), 0);
  return (resident & 1U) != 0;
}

// Waits up to a second until the pages at all these offsets are in the page cache.
bool are_cached_soon(const Region& mapped, const std::vector<std::uint64_t>& offsets) {
  const auto cached = [&](std::uint64_t offset) { return is_cached(mapped, offset); };
  for (int i = 0; i < 100; ++i) {
    if (std::all_of(offsets.begin(), offsets.end(), cached)) return true;
    ::usleep(10'000);
  }
  return false;
}

void drop_pages(const File& file) { ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED); }

// Waits up to a second until the pages at these offsets have left the page cache. The kernel may hold what
// was just written a moment longer, and some file systems keep their files in memory.
bool are_dropped_soon(const File& file, const Region& mapped, const std::vector<std::uint64_t>& offsets) {
  EXPECT_EQ(::fsync(file.descriptor()), 0);
  const auto cached = [&](std::uint64_t offset) { return is_cached(mapped, offset); };
  for (int i = 0; i < 100; ++i) {
    drop_pages(file);
    if (std::none_of(offsets.begin(), offsets.end(), cached)) return true;
    ::usleep(10'000);
  }
  return false;
}

// Returns whether the pages at these offsets come to the cache when they are expected. A busy disk refuses
// such reads. A refused page stays in the cache without content, and is not read again.
bool are_read(const File& file, const Region& mapped, const std::vector<std::uint64_t>& offsets,
              const std::function<void()>& expect) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    drop_pages(file);
    expect();
    if (are_cached_soon(mapped, offsets)) return true;
  }
  return false;
}

TEST_F(AheadTest, KernelReadsExpectedRanges) {
  const File file = open();
  const Region mapped = map_file(file, 0, Mode::read_only);
  if (!are_dropped_soon(file, mapped, {9 * kMiB, 11 * kMiB})) GTEST_SKIP() << "the file stays in memory";
  const std::vector<Extent> ranges = {{kMiB, 30}, {5 * kMiB, 30}, {9 * kMiB, 30}};
  std::vector<std::uint64_t> expected;
  for (const Extent& range : ranges) expected.push_back(100 + 100 + 50 + range.offset);
  const PartSource source(std::make_shared<FileSource>(open(), 100), {100, 12 * kMiB}, {});
  const bool cached = are_read(file, mapped, expected, [&] { source.expect(ranges, 50); });
  if (!cached) {
    drop_pages(file);
    for (const std::uint64_t offset : expected) {
      ::posix_fadvise(file.descriptor(), static_cast<off_t>(offset), 30, POSIX_FADV_WILLNEED);
    }
    if (!are_cached_soon(mapped, expected)) GTEST_SKIP() << "a kernel that drops the advice itself";
  }
  EXPECT_TRUE(cached);
  EXPECT_FALSE(is_cached(mapped, 11 * kMiB));
}

TEST_F(AheadTest, BytesBetweenCloseRangesAreReadToo) {
  const File file = open();
  const Region mapped = map_file(file, 0, Mode::read_only);
  if (!are_dropped_soon(file, mapped, {0, 9 * kMiB})) GTEST_SKIP() << "the file stays in memory";
  const std::vector<Extent> ranges = {{8 * kMiB, 30}, {8 * kMiB + 20'000, 30}, {8 * kMiB + 40'000, 30}};
  std::vector<std::uint64_t> expected;
  for (std::uint64_t at = 0; at < 40'000; at += kPage) expected.push_back(8 * kMiB + at);
  EXPECT_TRUE(are_read(file, mapped, expected, [&] { file.expect(ranges, 0); }));
  EXPECT_FALSE(is_cached(mapped, 0));
}

TEST_F(AheadTest, PartsOfAFile) {
  const auto whole = std::make_shared<FileSource>(open(), 0);
  const auto mapping = WholeMapper::of(map_file(open(), 0, Mode::read_only));
  const PartSource source(whole, {4097, 9 * kMiB}, {});
  PartMapper mapper(mapping, 4097);
  for (const Extent extent : {Extent{0, 10}, Extent{77, 5 * kMiB}, Extent{9 * kMiB - 5, 5}}) {
    const std::string_view expected = from(4097 + extent.offset, extent.size);
    EXPECT_EQ(source.read(extent).bytes().text(), expected);
    EXPECT_EQ(mapper.region(extent).bytes().text(), expected);
    EXPECT_EQ(mapper.region_apart(extent).bytes().text(), expected);
  }
  EXPECT_EQ(source.size(), 9 * kMiB);
  EXPECT_THROW(source.read(Extent{9 * kMiB - 5, 6}), FormatError);
  EXPECT_TRUE(mapper.is_aligned(3, 4));
  EXPECT_FALSE(mapper.is_aligned(0, 2));
  EXPECT_THROW(PartSource(whole, {content_.size() - 5, 6}, {}), FormatError);
  EXPECT_THROW(PartSource(whole, {~std::uint64_t{0}, 6}, {}), FormatError);
}

TEST_F(AheadTest, PastThePageCache) {
  for (const std::uint64_t start : {0U, 4096U, 100U}) {
    const DirectSource source(open(), start, {.threads = 4, .on_progress = {}});
    for (const Extent extent : {Extent{0, 10}, Extent{0, 8192}, Extent{64, 9 * kMiB}, Extent{4095, 4098},
                                Extent{77, 5 * kMiB}, Extent{12 * kMiB, kMiB / 2}}) {
      EXPECT_EQ(source.read(extent).bytes().text(), from(start + extent.offset, extent.size))
          << start << " " << extent.offset;
    }
    const Extent to_the_end{64, source.size() - 64};
    EXPECT_EQ(source.read(to_the_end).bytes().text(), from(start + 64, to_the_end.size));
  }
}

TEST_F(AheadTest, TruncatedFilePastThePageCache) {
  const DirectSource source(open(), 0, {.threads = 4, .on_progress = {}});
  cut(5 * kMiB + 5);
  EXPECT_THROW(source.read(Extent{0, 13 * kMiB}), FileError);
}

TEST_F(AheadTest, FindsTheMappedFile) {
  const File file = open();
  const Region mapped = map_extent(file, {2 * kMiB, kMiB}, Mode::read_only);
  const std::vector<FileMapping> mappings = file_mappings();
  const FileMapping* found = mapping_of(mappings, mapped.bytes());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->path, path_);
  EXPECT_EQ(found->inode, file.inode());
  EXPECT_TRUE(file_of(*found));
  const auto last = file_mapping_at(found->end - 1);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->begin, found->begin);
  EXPECT_EQ(last->path, path_);
  const Region other = Region::allocate(100);
  EXPECT_EQ(mapping_of(mappings, other.bytes()), nullptr);
  // NOLINTNEXTLINE(*-reinterpret-cast): the address to look up
  EXPECT_FALSE(file_mapping_at(reinterpret_cast<std::uintptr_t>(other.bytes().data())));
  EXPECT_FALSE(file_mapping_at(0));
  EXPECT_FALSE(file_mapping_at(~std::uint64_t{0}));
  std::remove(path_.c_str());
  EXPECT_FALSE(file_of(*found));
}

TEST(Maps, Lines) {
  const auto found =
      mapping_in_line("7f00-7f2c rw-p 00001000 fe:00 131075                     /a model.pt (deleted)");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, 0x7F00U);
  EXPECT_EQ(found->end, 0x7F2CU);
  EXPECT_EQ(found->offset, 0x1000U);
  EXPECT_EQ(found->inode, 131075U);
  EXPECT_EQ(found->path, "/a model.pt (deleted)");
  EXPECT_EQ(found->identity, "fe:00 131075");
  EXPECT_TRUE(found->writable);
  EXPECT_FALSE(found->shared);
  const auto nameless = mapping_in_line("7f00-7f2c r--s 00000000 00:05 7 anon_inode:x");
  ASSERT_TRUE(nameless);
  EXPECT_TRUE(nameless->shared);
  EXPECT_FALSE(nameless->writable);
  for (const char* line : {"", "7f00", "7f00-7f2c", "7f00-7f2c rw-p", "7f00-7f2c rw-p 00001000 fe:00 0",
                           "7f00-7f2c rw-p 00001000 00:00 0 [heap]", "7f00-7f2c rw-p 00001000 00:00 0 ",
                           "7f00-7f2c rw 00001000 fe:00 1 /a", "x-y rw-p 00001000 fe:00 1 /a"}) {
    EXPECT_FALSE(mapping_in_line(line)) << line;
  }
}

TEST(Memory, PagesAlignWithTheFile) {
  for (const std::uint64_t offset : {0U, 64U, 4096U, 5000U}) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{5000}, std::size_t{5} << 20U}) {
      const Region pages = allocate_pages(size, offset);
      EXPECT_EQ(pages.size(), size);
      // NOLINTNEXTLINE(*-reinterpret-cast): the address's offset in its page
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pages.data()) % kPage, offset % kPage);
      pages.data()[size - 1] = std::byte{1};
      EXPECT_EQ(pages.data()[0], size == 1 ? std::byte{1} : std::byte{0});
    }
  }
}

TEST(FileSystems, NetworkTypes) {
  const std::vector<std::tuple<std::uint64_t, std::string, bool>> table = {
      {0x6969, "NFS", true},        {0xFF534D42, "CIFS", true},
      {0xFE534D42, "SMB2", true},   {0x517B, "SMB", true},
      {0x65735546, "FUSE", true},   {0x01021997, "9p", true},
      {0x00C36400, "Ceph", true},   {0x0BD00BD0, "Lustre", true},
      {0x47504653, "GPFS", true},   {0x19830326, "BeeGFS", true},
      {0x5346414F, "AFS", true},    {0xEF53, "ext4", false},
      {0x58465342, "XFS", false},   {0x9123683E, "Btrfs", false},
      {0x01021994, "tmpfs", false}, {0x794C7630, "overlayfs", false},
      {0x2FC12FC1, "ZFS", false},   {0x12345678, "type 0x12345678", false}};
  for (const auto& [type, name, network] : table) {
    EXPECT_EQ(file_system_of_type(type).name, name);
    EXPECT_EQ(file_system_of_type(type).network, network) << name;
  }
  EXPECT_FALSE(file_system_of("/proc").network);
  EXPECT_THROW(file_system_of("/no such place"), FileError);
  EXPECT_THROW(file_system_of(-1, "closed"), FileError);
}

}  // namespace
}  // namespace zerocopy::test::read_ahead_test
