// Copies to a device: every byte of every storage arrives at its place, and threads write only to
// lent slots.
#include "io/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "io/ring.h"
#include "support.h"

namespace zerocopy::test::staging_test {
namespace {

// Aligned slots with guard bytes behind them, to detect writes past the end.
class Slots {
 public:
  Slots(std::size_t count, std::uint64_t size) : size_(size) {
    for (std::size_t i = 0; i < count; ++i) {
      memory_.push_back(allocate_pages(static_cast<std::size_t>(size) + kSlotAlignment, 0));
      free_.push_back(memory_.back().data());
    }
  }

  std::byte* take() {
    std::byte* const slot = free_.front();
    free_.pop_front();
    return slot;
  }
  void put_back(std::byte* slot) { free_.push_back(slot); }
  bool any() const { return !free_.empty(); }

  bool kept_inside() const {
    return std::ranges::all_of(memory_, [&](const Region& slot) {
      return std::ranges::all_of(std::span(slot.data() + size_, kSlotAlignment),
                                 [](std::byte byte) { return byte == std::byte{0}; });
    });
  }

 private:
  std::uint64_t size_;
  std::vector<Region> memory_;
  std::deque<std::byte*> free_;
};

// Returns the content of the device.
std::vector<std::byte> carry(const StagingPlan& staging, unsigned threads, std::size_t slot_count) {
  std::vector<std::byte> device(staging.size);
  Slots slots(slot_count, staging.slot_size);
  SlotReader reader(staging.chunks, transfer_options(threads));
  std::deque<std::byte*> lent;
  std::size_t count = 0;
  for (std::size_t i = 0; i < staging.chunks.size(); ++i) {
    while (slots.any() && count < staging.chunks.size()) {
      lent.push_back(slots.take());
      reader.lend(lent.back());
      ++count;
    }
    reader.wait(i);
    for (const DeviceCopy& copy : staging.chunks[i].copies) {
      EXPECT_LE(copy.from + copy.size, staging.slot_size);
      EXPECT_LE(copy.to + copy.size, staging.size);
      std::memcpy(device.data() + copy.to, lent.front() + copy.from, copy.size);
    }
    // Writes to a returned slot would show up in the next chunk.
    std::memset(lent.front(), 0xEE, staging.slot_size);
    slots.put_back(lent.front());
    lent.pop_front();
  }
  reader.stop();
  EXPECT_TRUE(slots.kept_inside());
  return device;
}

void expect_all_there(std::span<const StagedStorage> staged_storages, const StagingPlan& staging,
                      std::span<const std::byte> device) {
  for (std::size_t i = 0; i < staged_storages.size(); ++i) {
    const Extent extent = staged_storages[i].extent;
    ASSERT_LE(staging.device_offsets[i] + extent.size, device.size());
    EXPECT_EQ(staging.device_offsets[i] % 64, 0U);
    for (std::uint64_t at = 0; at < extent.size; at += at + 9 < extent.size ? 7 : 1) {
      ASSERT_EQ(device[staging.device_offsets[i] + at], pattern(extent.offset + at)) << i << " at " << at;
    }
  }
}

TEST(StagingPlan, CopiesEveryByte) {
  std::mt19937 random(7);
  for (const std::uint64_t unit : {1U, 2U, 8U, 64U, 4096U}) {
    const MadeUpSource source(64 * kMiB);
    std::vector<StagedStorage> staged_storages;
    std::uint64_t end = 3 * unit;
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t size = i % 50 == 0 ? random() % (3 * kMiB) : random() % 900;
      staged_storages.push_back({&source, {end, size}});
      end += size + (i % 70 == 0 ? 5000 : random() % 100);
      end += (unit - end % unit) % unit;
    }
    std::shuffle(staged_storages.begin(), staged_storages.end(), random);
    const StagingPlan staging = plan_staging(staged_storages);
    for (const unsigned threads : {1U, 3U}) {
      expect_all_there(staged_storages, staging, carry(staging, threads, 2));
    }
  }
}

TEST(SlotReader, WritesOnlyToLentSlots) {
  const MadeUpSource source(32 * kMiB);
  const std::vector<StagedStorage> staged_storages = {{&source, {0, 32 * kMiB}}};
  const StagingPlan staging = plan_staging(staged_storages);
  Slots slots(1, staging.slot_size);
  SlotReader reader(staging.chunks, transfer_options(4));
  EXPECT_EQ(source.reads, 0);
  reader.lend(slots.take());
  reader.wait(0);
  const int reads = source.reads;
  reader.stop();
  EXPECT_EQ(source.reads, reads) << "of other chunks, which were lent nothing, nothing is read";
}

}  // namespace
}  // namespace zerocopy::test::staging_test
