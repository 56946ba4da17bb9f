// Several threads use the same bytes. scripts/test --sanitize thread checks these tests for races.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "checkpoint/archive.h"
#include "io/mapping.h"
#include "io/read_ahead.h"
#include "io/windows.h"
#include "pickle/machine.h"
#include "support.h"

namespace zerocopy::test::threads_test {
namespace {

constexpr int kThreads = 8;
constexpr int kRounds = 25;

// Runs work(i) on several threads at once, and joins them.
template <typename Work>
void on_threads(Work work) {
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const std::string kData(256, 'd');
const DType& kBytes = *dtype_by_name("uint8");

// Returns an archive of stored records, each a name and its bytes.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string file;
  std::string directory;
  for (const auto& [name, bytes] : records) {
    const std::string sizes =
        u32(0) + u32(0) + u32(bytes.size()) + u32(bytes.size()) + u16(name.size()) + u16(0);
    directory += "PK\1\2"s + u16(20) + u16(20) + u16(0) + u16(0) + sizes + u16(0) + u16(0) + u16(0) + u32(0) +
                 u32(file.size()) + name;
    file += "PK\3\4"s + u16(20) + u16(0) + u16(0) + sizes + name + bytes;
  }
  return file + directory + "PK\5\6" + u32(0) + u16(records.size()) + u16(records.size()) +
         u32(directory.size()) + u32(file.size()) + u16(0);
}

// A checkpoint of a plain list and one storage, with enough records that the archive starts a
// thread.
std::string checkpoint(int more_records = 200) {
  std::vector<std::pair<std::string, std::string>> records = {
      {"root/data.pkl", "\x80\2]q\0(K\1K\2e."s}, {"root/version", "3\n"}, {"root/data/0", kData}};
  for (int i = 0; i < more_records; ++i) records.emplace_back("root/data/x" + std::to_string(i), "");
  return zip_of(records);
}

std::vector<Record> records_of(Archive& archive) {
  return archive.records(std::vector{StorageRequest{"0", &kBytes, kData.size()}});
}

void read_whole(const std::shared_ptr<const Source>& source, const Region& mapping) {
  const auto archive = Archive::open(source, WholeMapper::of(mapping), Mode::copy_on_write);
  const Document document = archive->document();
  EXPECT_EQ(document.storages.size(), 0U);
  const std::vector<Record> records = records_of(*archive);
  EXPECT_EQ(archive->content().storage(records[0], kBytes).bytes().text(), kData);
}

TEST(Threads, ArchivesOfOneMemory) {
  const Region file = region_of(checkpoint());
  const auto source = std::make_shared<const MemorySource>(file);
  on_threads([&](int i) {
    for (int round = 0; round < kRounds; ++round) read_whole(source, i % 2 == 0 ? file : Region());
  });
}

// Several loads of one archive: const functions must be thread-safe.
TEST(Threads, OneArchive) {
  const Region file = region_of(checkpoint());
  const auto source = std::make_shared<const MemorySource>(file);
  const auto archive = Archive::open(source, WholeMapper::of(file), Mode::copy_on_write);
  const Record record = records_of(*archive).at(0);
  on_threads([&](int) {
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_EQ(archive->pickle().size(), 12U);
      EXPECT_FALSE(archive->is_torchscript());
      EXPECT_EQ(archive->content().placement(record, kBytes).how, Placement::How::mapped);
      EXPECT_EQ(archive->content().storage(record, kBytes).bytes().text(), kData);
    }
  });
}

// Destroys archives while their thread reads headers, or after an unreported error.
TEST(Threads, ArchivesDestroyedAtOnce) {
  const auto good = source_of(checkpoint(2000));
  std::string broken = checkpoint(2000);
  broken[broken.find("root/data/x1999")] = 'R';  // in the local header, which comes first
  const auto bad = source_of(broken);
  on_threads([&](int i) { Archive::open(i % 2 == 0 ? good : bad, nullptr, Mode::copy_on_write); });
}

// A file that exists as long as this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }

  const std::string& path() const { return path_; }
  File open() const { return File::open(path_, File::Access::read); }

 private:
  std::string path_ = ::testing::TempDir() + "zerocopy_threads_" + std::to_string(::getpid());
};

TEST(Threads, ArchivesOfOneFile) {
  const TemporaryFile made(checkpoint());
  File file = made.open();
  const Region mapping = map_file(file, 0, Mode::copy_on_write);
  const auto source = std::make_shared<const FileSource>(std::move(file), 0);
  on_threads([&](int i) {
    for (int round = 0; round < kRounds; ++round) read_whole(source, i % 2 == 0 ? mapping : Region());
  });
}

// Windows are shared by neighbours, and given back with the last region in them.
TEST(Threads, WindowsOfOneFile) {
  const TemporaryFile file("0" + std::string(kMiB - 1, ' ') + "1" + std::string(kMiB - 1, ' ') + "2");
  WindowMapper windows(std::make_shared<const File>(file.open()), 0, Mode::copy_on_write);
  on_threads([&](int n) {
    for (int i = 0; i < 1000; ++i) {
      const int at = (i * (n + 1)) % 3;
      EXPECT_EQ(windows.region({static_cast<std::uint64_t>(at) * kMiB, 1}).bytes().text(),
                std::to_string(at));
    }
  });
}

TEST(Threads, ReadingAheadThatIsCancelled) {
  const TemporaryFile file(std::string(std::size_t{13} << 20U, 'x'));
  for (int round = 0; round < 20; ++round) {
    std::vector<MappedPart> parts;
    parts.push_back({map_file(file.open(), 0, Mode::read_only), 0, file.open(), file.path()});
    const auto reading = ReadAhead::start(std::move(parts), 4);
    reading->cancel();
    if (round % 2 != 0) continue;  // no thread waits
    EXPECT_TRUE(reading->wait_for(std::chrono::minutes(1)));
    EXPECT_NO_THROW(reading->rethrow());
  }
}

class Watched final : public Owner {
 public:
  explicit Watched(std::atomic<int>& destroyed) : destroyed_(destroyed) {}
  ~Watched() override {
    bytes_.clear();  // a write, which races with any reader
    ++destroyed_;
  }
  std::byte* data() { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(64, std::byte{7});
  std::atomic<int>& destroyed_;
};

// Any thread may release the last reference.
TEST(Threads, RegionsOfOneOwner) {
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> destroyed = 0;
    auto* owner = new Watched(destroyed);
    std::vector<Region> parts(kThreads, Region(owner->data(), 64, OwnerRef(owner)));
    on_threads([&](int i) {
      Region part = std::move(parts[static_cast<std::size_t>(i)]);
      for (int again = 0; again < 100; ++again) part = Region(part).slice({0, 64});
      EXPECT_EQ(part.bytes().text(), std::string(64, '\7'));
      const Region last = std::move(part);
    });
    EXPECT_EQ(destroyed, 1);
  }
}

}  // namespace
}  // namespace zerocopy::test::threads_test
