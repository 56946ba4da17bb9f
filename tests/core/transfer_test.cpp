// Transfers: every byte is moved once, the first error wins, and no thread outlives a transfer.
#include "io/transfer.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/batch.h"
#include "support.h"

namespace zerocopy::test::transfer_test {
namespace {

// Returns the number of live threads that called this function, with the caller. Joined threads are
// not counted, unlike in /proc/self/task, nor are a sanitizer's own threads.
std::size_t threads_seen() {
  static std::atomic<std::size_t> alive = 0;
  struct Presence {
    Presence() { ++alive; }
    ~Presence() { --alive; }
  };
  thread_local const Presence presence;
  return alive;
}

TEST(Transfer, MovesEachByteOnce) {
  for (const unsigned threads : {1U, 2U, 16U}) {
    std::vector<std::byte> memory(11 * kMiB);
    const std::vector<Piece> pieces = {{{3, 9 * kMiB}, memory.data()},
                                       {{100 * kMiB, 0}, nullptr},
                                       {{20 * kMiB, 2 * kMiB}, memory.data() + 9 * kMiB}};
    std::mutex mutex;
    std::set<std::uint64_t> offsets;
    std::uint64_t moved = 0;
    transfer(
        pieces,
        [&](const Piece& request) {
          EXPECT_LE(request.extent.size, kRequest);
          std::fill_n(request.to, request.extent.size, std::byte{1});
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(offsets.insert(request.extent.offset).second);
          moved += request.extent.size;
        },
        transfer_options(threads));
    EXPECT_EQ(moved, memory.size());
    EXPECT_EQ(std::ranges::count(memory, std::byte{1}), static_cast<std::ptrdiff_t>(memory.size()));
    EXPECT_TRUE(offsets.contains(kRequest)) << "requests begin at multiples of their size";
  }
}

TEST(Transfer, LimitsThreads) {
  const std::size_t before = threads_seen();
  std::atomic<std::size_t> most = 0;
  const Piece whole{{0, 64 * kMiB}, nullptr};
  const auto move = [&](const Piece&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::size_t now = threads_seen();
    std::size_t known = most;
    while (known < now && !most.compare_exchange_weak(known, now)) {
    }
  };
  transfer(std::span(&whole, 1), move, transfer_options(3));
  EXPECT_LE(most, before + 3);
  EXPECT_GT(most, before);
  EXPECT_EQ(threads_seen(), before);
  most = 0;
  transfer(std::span(&whole, 1), move, transfer_options(1));
  EXPECT_EQ(most, before);
}

TEST(Transfer, FirstErrorStopsIt) {
  for (const unsigned threads : {1U, 4U}) {
    const std::size_t before = threads_seen();
    std::atomic<int> moved = 0;
    const Piece whole{{0, 4096 * kMiB}, nullptr};
    const auto move = [&](const Piece& request) {
      threads_seen();
      if (request.extent.offset >= 16 * kMiB) throw FileError(EIO, "disk");
      ++moved;
    };
    EXPECT_THROW(transfer(std::span(&whole, 1), move, transfer_options(threads)), FileError);
    EXPECT_EQ(moved, 4) << "nothing was begun behind the fault";
    EXPECT_EQ(threads_seen(), before);
  }
}

TEST(Transfer, CallerCanStop) {
  struct Interrupt {};
  for (const unsigned threads : {1U, 4U}) {
    const std::size_t before = threads_seen();
    const Piece whole{{0, 4096 * kMiB}, nullptr};
    std::atomic<int> moved = 0;
    const auto move = [&](const Piece&) {
      threads_seen();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++moved;
    };
    std::uint64_t seen = 0;
    const TransferOptions options{.threads = threads, .on_progress = [&](std::uint64_t done) {
                                    EXPECT_GE(done, seen);
                                    seen = done;
                                    if (done > 8 * kMiB) throw Interrupt();
                                  }};
    EXPECT_THROW(transfer(std::span(&whole, 1), move, options), Interrupt);
    EXPECT_LT(moved, 1024);
    EXPECT_EQ(threads_seen(), before);
  }
}

TEST(Transfer, ASourceReadsManyRanges) {
  const MadeUpSource source(100 * kMiB, 4);
  const Region one = source.read(Extent{5, 9 * kMiB});
  EXPECT_EQ(one.data()[0], pattern(5));
  EXPECT_EQ(one.data()[kRequest - 5], pattern(kRequest));
  const Piece outside{{99 * kMiB, 2 * kMiB}, one.data()};
  EXPECT_THROW(source.read(std::span(&outside, 1)), FormatError);
}

TEST(Batch, NeighboursShareMemoryAndKeepTheirAlignment) {
  const MadeUpSource source(64 * kMiB, 4);
  const std::vector<RecordRead> record_reads = {{{30 * kMiB, 12 * kMiB}, 4},  // large, so it is read alone
                                                {{64, 640}, 4},
                                                {{1024, 64}, 8},
                                                {{2049, 640}, 4},      // not aligned, so it is read alone
                                                {{4096, 0}, 4},        // empty
                                                {{8 * kMiB, 64}, 4}};  // too far away
  const std::vector<Region> regions = read_batch(source, record_reads);
  ASSERT_EQ(regions.size(), record_reads.size());
  for (std::size_t i = 0; i < record_reads.size(); ++i) {
    ASSERT_EQ(regions[i].size(), record_reads[i].extent.size);
    // NOLINTNEXTLINE(*-reinterpret-cast): the address's alignment
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(regions[i].data()) % record_reads[i].alignment, 0U) << i;
  }
  EXPECT_EQ(regions[0].data()[0], pattern(30 * kMiB));
  EXPECT_EQ(regions[3].data()[0], pattern(2049));
  EXPECT_TRUE(regions[1].owner() == regions[2].owner());
  EXPECT_FALSE(regions[1].owner() == regions[3].owner());
  EXPECT_FALSE(regions[1].owner() == regions[5].owner());
}

}  // namespace
}  // namespace zerocopy::test::transfer_test
