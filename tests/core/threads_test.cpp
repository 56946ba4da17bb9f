// Several threads use the same bytes. scripts/test --sanitize thread checks these tests for races.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "checkpoint/archive.h"
#include "io/mapping.h"
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

// A checkpoint of a plain list and one storage, with enough records that the archive starts a
// thread.
std::string checkpoint(int more_records = 200) {
  std::vector<ZipRecord> list = {
      {"root/data.pkl", "\x80\2]q\0(K\1K\2e."s}, {"root/version", "3\n"}, {"root/data/0", kData}};
  for (int i = 0; i < more_records; ++i) list.emplace_back("root/data/x" + std::to_string(i), "");
  return zip_of(std::move(list));
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

TEST(Threads, ArchivesOfOneFile) {
  const std::string path = ::testing::TempDir() + "zerocopy_threads_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << checkpoint();
  File file = File::open(path, File::Access::read);
  const Region mapping = map_file(file, 0, Mode::copy_on_write);
  const auto source = std::make_shared<const FileSource>(std::move(file), 0);
  on_threads([&](int i) {
    for (int round = 0; round < kRounds; ++round) read_whole(source, i % 2 == 0 ? mapping : Region());
  });
  std::filesystem::remove(path);
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
