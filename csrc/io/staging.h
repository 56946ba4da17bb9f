// The way of many storages to a device: where each lies in one allocation there, and the chunks that they
// travel in.
//
//   file        │ h │  0  │ h │1│ h │        2        │    records, with headers between them
//   chunks      ├──────────────────────┼──────────────┤   neighbours together, large ones in parts
//   slot        as in the file, as far behind a page border: so O_DIRECT can fill it
//   device      │  0  │ h │1│ h │        2        │        one copy a chunk, headers and all
//
// What does not lie in the file as a device wants it (64 bytes) is apart on the device: a copy more. Where a
// chunk has many such, they are put in its slot as they are to lie on the device, and are one copy again.
#pragma once

#include <span>
#include <vector>

#include "io/source.h"

namespace zerocopy {

// The bytes of one storage. The source has to outlive whatever reads it.
struct Cargo {
  const Source* source = nullptr;
  Extent extent;
};

// Bytes to be read into a slot.
struct Fill {
  const Source* source = nullptr;
  Extent extent;
  std::uint64_t at = 0;
};

// Bytes of a filled slot, and where they go on the device.
struct Copy {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t size;
};

// One slotful.
struct Chunk {
  std::vector<Fill> fills;
  std::vector<Copy> copies;
};

struct Staging {
  std::vector<std::uint64_t> places;  // on the device, of each cargo
  std::uint64_t size = 0;             // of the allocation there
  std::uint64_t slot = 0;             // what a slot has to hold
  std::vector<Chunk> chunks;          // in the order of the device
};

// A slot begins at such a border.
constexpr std::uint64_t kSlotBorder = 4096;

constexpr std::uint64_t kSmallestSlot = std::uint64_t{1} << 20U;
constexpr std::uint64_t kLargestSlot = std::uint64_t{16} << 20U;

// Throws FormatError for cargo that leaves its source.
Staging plan_staging(std::span<const Cargo> cargo);

}  // namespace zerocopy
