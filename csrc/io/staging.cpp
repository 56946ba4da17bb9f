#include "io/staging.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

namespace zerocopy {
namespace {

// Alignments of storages on the device: the preferred alignment, and the alignment that suffices if
// the file has it.
constexpr std::uint64_t kPreferredAlignment = 256;
constexpr std::uint64_t kMinAlignment = 64;

constexpr std::uint64_t kMaxGap = 4096;  // a header and its padding are copied along

constexpr std::size_t kMaxCopies = 8;  // per chunk

// Extra room in a slot: each part keeps its offset within a page of the file.
constexpr std::uint64_t kSlack = (kMaxCopies + 1) * kSlotAlignment;

// Use at least this many slots' worth of chunks, so that reading and copying overlap.
constexpr std::uint64_t kMinSlots = 8;

// Bytes with the same layout on the device as in the file.
struct Run {
  const Source* source;
  std::uint64_t offset;
  std::uint64_t place;
  std::uint64_t size;
};

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

std::vector<Run> place_all(std::span<const StagedStorage> staged_storages, StagingPlan& staging) {
  std::vector<std::size_t> order(staged_storages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t one, std::size_t other) {
    const StagedStorage& a = staged_storages[one];
    const StagedStorage& b = staged_storages[other];
    return a.source == b.source ? a.extent.offset < b.extent.offset
                                : std::less<const Source*>{}(a.source, b.source);
  });
  std::vector<Run> runs;
  for (const std::size_t i : order) {
    const auto& [source, extent] = staged_storages[i];
    if (!extent.fits(source->size())) throw FormatError("a record exceeds the file");
    if (extent.size == 0) continue;
    if (!runs.empty() && runs.back().source == source) {
      Run& run = runs.back();
      const std::uint64_t end = run.offset + run.size;
      const std::uint64_t place = run.place + (extent.offset - run.offset);
      if (extent.offset >= end && extent.offset - end <= kMaxGap && place % kMinAlignment == 0) {
        staging.device_offsets[i] = place;
        run.size = extent.offset - run.offset + extent.size;
        staging.size = run.place + run.size;
        continue;
      }
    }
    staging.device_offsets[i] = round_up(staging.size, kPreferredAlignment);
    runs.push_back({source, extent.offset, staging.device_offsets[i], extent.size});
    staging.size = staging.device_offsets[i] + extent.size;
  }
  return runs;
}

// Splits reads at request boundaries of the file.
void append_reads(std::vector<SlotRead>& reads, const Run& part, std::uint64_t at) {
  for (std::uint64_t done = 0; done < part.size;) {
    std::uint64_t size = std::min(kRequest, part.size - done);
    if (size < part.size - done) size -= (part.offset + done + size) % kSlotAlignment;
    reads.push_back({part.source, {part.offset + done, size}, at + done});
    done += size;
  }
}

Chunk chunk_of(std::span<const Run> parts) {
  Chunk chunk;
  const std::uint64_t begin = parts.front().place;
  if (parts.size() > kMaxCopies) {
    for (const Run& part : parts) append_reads(chunk.reads, part, part.place - begin);
    chunk.copies.push_back({0, begin, parts.back().place + parts.back().size - begin});
    return chunk;
  }
  std::uint64_t at = 0;
  for (const Run& part : parts) {
    at += (part.offset % kSlotAlignment + kSlotAlignment - at % kSlotAlignment) % kSlotAlignment;
    append_reads(chunk.reads, part, at);
    chunk.copies.push_back({at, part.place, part.size});
    at += part.size;
  }
  return chunk;
}

// Removes the bytes of one chunk from the runs, and splits the last run at a request boundary.
class Cutter {
 public:
  Cutter(std::vector<Run> runs, std::uint64_t room) : runs_(std::move(runs)), room_(room) {}

  bool done() const { return next_ == runs_.size(); }

  std::vector<Run> take() {
    std::vector<Run> parts;
    const std::uint64_t end = runs_[next_].place + room_;
    while (!done() && runs_[next_].place < end) {
      Run& run = runs_[next_];
      Run part = run;
      if (run.size <= end - run.place) {
        ++next_;
        parts.push_back(part);
        continue;
      }
      part.size = end - run.place;
      part.size -= std::min(part.size, (run.offset + part.size) % kSlotAlignment);
      run.offset += part.size;
      run.place += part.size;
      run.size -= part.size;
      if (part.size > 0) parts.push_back(part);
      break;
    }
    return parts;
  }

 private:
  std::vector<Run> runs_;
  std::uint64_t room_;
  std::size_t next_ = 0;
};

}  // namespace

StagingPlan plan_staging(std::span<const StagedStorage> staged_storages) {
  StagingPlan staging;
  staging.device_offsets.resize(staged_storages.size());
  std::vector<Run> runs = place_all(staged_storages, staging);
  staging.slot_size = std::clamp(std::bit_ceil(staging.size / kMinSlots), kMinSlot, kMaxSlot);
  for (Cutter cutter(std::move(runs), staging.slot_size - kSlack); !cutter.done();) {
    staging.chunks.push_back(chunk_of(cutter.take()));
  }
  return staging;
}

}  // namespace zerocopy
