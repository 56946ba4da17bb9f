#include "io/windows.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support.h"

namespace zerocopy::test::windows_test {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20U;

// A sparse file of 20 MiB.
class Windows : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "zerocopy_windows_XXXXXX";
    ::close(::mkstemp(path_.data()));
    std::filesystem::resize_file(path_, kSize);
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    for (std::uint64_t at = 0; at < kSize; at += kMebibyte) {
      file.seekp(static_cast<std::streamoff>(at));
      file << "at " << at;
    }
  }
  void TearDown() override { std::filesystem::remove(path_); }

  WindowMapper mapper(std::uint64_t start = 0, Mode mode = Mode::copy_on_write) const {
    return {std::make_shared<const File>(File::open(path_, File::Access::read)), start, mode};
  }
  static std::string expected(std::uint64_t at) { return "at " + std::to_string(at); }
  static std::string text(const Region& region) { return std::string(region.bytes().text()); }
  static bool is_mapped(const std::byte* address) {
    const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto page = reinterpret_cast<std::uintptr_t>(address) / page_size * page_size;
    unsigned char resident = 0;
    return ::mincore(reinterpret_cast<void*>(page), page_size, &resident) == 0;
  }

  static constexpr std::uint64_t kSize = 20 * kMebibyte;
  std::string path_;
};

TEST_F(Windows, GiveTheBytesOfTheFile) {
  WindowMapper windows = mapper();
  for (std::uint64_t at = 0; at < kSize; at += kMebibyte) {
    EXPECT_EQ(text(windows.region({at, expected(at).size()})), expected(at));
    EXPECT_EQ(text(windows.region_apart({at, expected(at).size()})), expected(at));
  }
  const Region whole = windows.region({0, kSize});
  EXPECT_EQ(whole.size(), kSize);
  EXPECT_EQ(text(whole.slice({7 * kMebibyte, 5})), expected(7 * kMebibyte).substr(0, 5));
}

TEST_F(Windows, BeginWhereTheyAreToldTo) {
  WindowMapper windows = mapper(kMebibyte + 1);
  EXPECT_EQ(text(windows.region({0, 3})), expected(kMebibyte).substr(1, 3));
  EXPECT_TRUE(windows.is_aligned(7, 8));
  EXPECT_FALSE(windows.is_aligned(0, 2));
  EXPECT_EQ(windows.region({0, kSize - kMebibyte - 1}).size(), kSize - kMebibyte - 1);
  EXPECT_THROW(windows.region({0, kSize - kMebibyte}), FormatError);
}

TEST_F(Windows, AreSharedByNeighbours) {
  WindowMapper windows = mapper();
  const Region first = windows.region({0, 10});
  const Region second = windows.region({kMebibyte, 10});
  EXPECT_EQ(second.data() - first.data(), static_cast<std::ptrdiff_t>(kMebibyte));
  first.data()[0] = std::byte{'A'};
  EXPECT_EQ(text(windows.region({0, 2})), "At");
  EXPECT_EQ(text(windows.region_apart({0, 2})), "at");
}

TEST_F(Windows, AreGivenBackWithTheLastRegionInThem) {
  WindowMapper windows = mapper();
  Region first = windows.region({0, 10});
  Region second = windows.region({kMebibyte, 10});
  const std::byte* const address = first.data();
  first = Region();
  EXPECT_TRUE(is_mapped(address));
  second = Region();
  EXPECT_FALSE(is_mapped(address));
  EXPECT_EQ(text(windows.region({0, 4})), "at 0");
}

TEST_F(Windows, OutliveTheirMapper) {
  Region region;
  {
    WindowMapper windows = mapper();
    region = windows.region({kMebibyte, 4});
  }
  EXPECT_EQ(text(region), "at 1");
}

TEST_F(Windows, RefuseWhatLeavesTheFile) {
  WindowMapper windows = mapper();
  EXPECT_THROW(windows.region({0, kSize + 1}), FormatError);
  EXPECT_THROW(windows.region({kSize + 1, 1}), FormatError);
  EXPECT_THROW(windows.region({~std::uint64_t{0}, 2}), FormatError);
  EXPECT_THROW(windows.region_apart({kSize, 1}), FormatError);
  EXPECT_EQ(windows.region({kSize, 0}).size(), 0U);
}

TEST_F(Windows, ReportSystemErrors) {
  WindowMapper windows = mapper(0, Mode::shared);  // on a file opened for reading
  EXPECT_THROW(windows.region({0, 1}), FileError);
  EXPECT_THROW(windows.region({0, 1}), FileError);
}

TEST_F(Windows, AreTakenAndGivenBackByManyThreads) {
  WindowMapper windows = mapper();
  std::vector<std::thread> threads;
  for (std::uint64_t n = 0; n < 4; ++n) {
    threads.emplace_back([&windows, n] {
      for (std::uint64_t i = 0; i < 2000; ++i) {
        const std::uint64_t at = (i * (n + 1)) % 3 * kMebibyte;
        EXPECT_EQ(text(windows.region({at, expected(at).size()})), expected(at));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Windows, TakeAdvice) {
  WindowMapper windows = mapper();
  const Region region = windows.region({5, 3 * kMebibyte});
  for (const Advice advice : {Advice::scattered, Advice::soon, Advice::together}) {
    advise(region.bytes(), advice);
    EXPECT_EQ(text(region.slice({kMebibyte - 5, 4})), "at 1");
  }
  advise(ByteSpan(), Advice::soon);
}

}  // namespace
}  // namespace zerocopy::test::windows_test
