// An archive laid out before its storages are written: steps that write it, and where checksums belong that
// are not known until then.
//
//   steps     header │ storage 0 │ descriptor, header │ storage 1 │ ... │ identifier │ directory
//   literals  ▒▒▒▒▒▒               ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                                   ▒▒▒▒▒▒▒▒▒
//                                  ↑ the checksum of storage 0, put there when it is written, and there ↑
//
// write() allocates, locks and throws nothing: a child of fork calls it.
#pragma once

#include <vector>

#include "io/new_file.h"

namespace zerocopy {

enum class StepKind : std::uint32_t {
  literal,     // `size` bytes of the literals from `begin`
  hole,        // zeros
  memory,      // of this process from the address `begin`
  part,        // of the open file `source` from `begin`
  identifier,  // puts the archive's identifier into the literals at `begin`; writes nothing
};

// Python packs these, see saving/plan.py.
struct Step {
  StepKind kind;
  std::uint32_t flags;
  std::uint64_t begin;
  std::uint64_t size;
  std::int32_t source;
  std::uint32_t known;        // a checksum of these bytes that the source has
  std::uint64_t first_place;  // in the literals: where the checksum belongs
  std::uint64_t second_place;
};
static_assert(sizeof(Step) == 48);

constexpr std::uint32_t kHasChecksum = 1;  // and it belongs to both places
constexpr std::uint32_t kKnowsChecksum = 2;
constexpr std::uint32_t kCounts = 4;  // as bytes of storages

// In the text that the identifier is made of, before the byte at `position`: the checksum of a step, in
// decimal.
struct Mention {
  std::uint64_t position;
  std::uint64_t step;
};
static_assert(sizeof(Mention) == 16);

// In memory that both processes see. Python reads it, see saving/background.py.
struct SaveReport {
  enum State : std::int32_t { running, finished, failed };

  std::uint64_t written;  // bytes of storages
  std::int32_t state;
  std::int32_t error;  // an errno
};
static_assert(sizeof(SaveReport) == 16);

class PlannedArchive {
 public:
  // Throws FormatError for a plan that points outside of its parts.
  PlannedArchive(std::vector<Step> steps, std::vector<std::byte> literals, std::vector<std::byte> text,
                 std::vector<Mention> mentions);

  // Writes the file, names it, and says in the report how it went. Returns whether all is well. Once only.
  bool write(NewFile file, const FileNaming& naming, SaveReport& report) noexcept;

  // Descriptors that the steps read from.
  std::vector<int> sources() const;

 private:
  int write_all(NewFile& file, SaveReport& report) noexcept;
  int write_part(NewFile& file, const Step& step, std::uint32_t& crc, SaveReport& report) noexcept;
  int checksum_of_part(const Step& step, Extent extent, std::uint32_t& crc) noexcept;
  std::uint32_t identify(std::uint64_t place) noexcept;

  std::vector<Step> steps_;
  std::vector<std::byte> literals_;
  std::vector<std::byte> text_;
  std::vector<Mention> mentions_;
  std::vector<std::uint32_t> checksums_;  // of the steps
  std::vector<std::byte> buffer_;
};

}  // namespace zerocopy
