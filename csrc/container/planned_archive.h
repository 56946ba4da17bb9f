// An archive whose layout is fixed before its storages are written. Checksums are filled in while
// it is written.
//
//   steps     header │ storage 0 │ descriptor, header │ storage 1 │ ... │ identifier │ directory
//   literals  ▒▒▒▒▒▒               ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                                   ▒▒▒▒▒▒▒▒▒
//                                  ↑ both hold the checksum of storage 0, once it is written ↑
//
// write() does not allocate, lock or throw, because a child of fork calls it.
#pragma once

#include <vector>

#include "io/new_file.h"

namespace zerocopy {

enum class StepKind : std::uint32_t {
  literal,  // `size` bytes of the literals from `begin`
  hole,     // zeros
  memory,   // of this process, from the address `begin`
  part,     // of the open file `source` from `begin`
  // Writes the archive's identifier into the literals at `begin`, and nothing to the file.
  identifier,
};

// Python packs these structures: see saving/plan.py.
struct Step {
  StepKind kind;
  std::uint32_t flags;
  std::uint64_t begin;
  std::uint64_t size;
  std::int32_t source;
  std::uint32_t known;        // the checksum of these bytes, if kKnowsChecksum is set
  std::uint64_t first_place;  // where the checksum belongs in the literals
  std::uint64_t second_place;
};
static_assert(sizeof(Step) == 48);

constexpr std::uint32_t kHasChecksum = 1;  // the checksum belongs in both places
constexpr std::uint32_t kKnowsChecksum = 2;
constexpr std::uint32_t kCounts = 4;  // count as bytes of storages

// A place in the text behind the identifier: before the byte at `position`, the checksum of a step
// in decimal.
struct ChecksumReference {
  std::uint64_t position;
  std::uint64_t step;
};
static_assert(sizeof(ChecksumReference) == 16);

// Progress in memory that both processes share. Python reads it: see saving/background.py.
struct SaveReport {
  enum State : std::int32_t { running, finished, failed };

  std::uint64_t written;  // bytes of storages
  std::int32_t state;
  std::int32_t error;  // an errno
};
static_assert(sizeof(SaveReport) == 16);

class PlannedArchive {
 public:
  // Throws FormatError for a plan that refers to bytes outside of its literals.
  PlannedArchive(std::vector<Step> steps, std::vector<std::byte> literals, std::vector<std::byte> text,
                 std::vector<ChecksumReference> references);

  // Writes and names the file, and sets the report. Returns whether all succeeded. Call it once
  // only.
  bool write(NewFile file, const FileNaming& naming, SaveReport& report) noexcept;

  // Returns the descriptors that the steps read.
  std::vector<int> sources() const;

 private:
  int write_all(NewFile& file, SaveReport& report) noexcept;
  int write_part(NewFile& file, const Step& step, std::uint32_t& crc, SaveReport& report) noexcept;
  int checksum_of_part(const Step& step, Extent extent, std::uint32_t& crc) noexcept;
  std::uint32_t identify(std::uint64_t place) noexcept;

  std::vector<Step> steps_;
  std::vector<std::byte> literals_;
  std::vector<std::byte> text_;
  std::vector<ChecksumReference> references_;
  std::vector<std::uint32_t> checksums_;  // of the steps
  std::vector<std::byte> buffer_;
};

}  // namespace zerocopy
