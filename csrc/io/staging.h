// Plans copies of many storages to a device: the place of each storage in one device allocation,
// and the chunks to copy. A slot is a host buffer that holds one chunk between file and device.
//
//   file        │ h │  0  │ h │1│ h │        2        │    records, with headers between them
//   chunks      ├──────────────────────┼──────────────┤   small neighbours grouped, large ones split
//   slot        same offset within a page as in the file, so O_DIRECT can fill it
//   device      │  0  │ h │1│ h │        2        │        one copy per chunk, with headers
//
// A storage that is not aligned to 64 bytes in the file needs a copy of its own. If a chunk has
// many such storages, they are read into the slot in device layout. Then one copy per chunk is enough
// again.
#pragma once

#include <span>
#include <vector>

#include "io/source.h"

namespace zerocopy {

// The bytes of one storage in a source. The source must outlive its readers.
struct StagedStorage {
  const Source* source = nullptr;
  Extent extent;
};

// Bytes to read into a slot.
struct SlotRead {
  const Source* source = nullptr;
  Extent extent;
  std::uint64_t at = 0;
};

// Bytes of a filled slot, and their offset on the device.
struct DeviceCopy {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t size;
};

// The reads and copies of one slot.
struct Chunk {
  std::vector<SlotRead> reads;
  std::vector<DeviceCopy> copies;
};

struct StagingPlan {
  std::vector<std::uint64_t> device_offsets;  // of each storage on the device
  std::uint64_t size = 0;                     // of the device allocation
  std::uint64_t slot_size = 0;                // bytes that each slot must hold
  std::vector<Chunk> chunks;                  // in device order
};

// The alignment of a slot.
constexpr std::uint64_t kSlotAlignment = 4096;

constexpr std::uint64_t kMinSlot = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMaxSlot = std::uint64_t{16} << 20U;

// Throws FormatError when a storage exceeds its source.
StagingPlan plan_staging(std::span<const StagedStorage> staged_storages);

}  // namespace zerocopy
