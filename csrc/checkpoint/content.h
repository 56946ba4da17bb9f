// The bytes of a checkpoint in memory: where each storage's record becomes a Region.
//
//   Record (extent in the file)  ──┬─ stored, aligned, native byte order, mapped ─→ slice of the mapping
//                                  └─ anything else ─→ fresh memory, read, inflated, swapped as needed
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "container/record.h"
#include "io/mapping.h"
#include "io/source.h"
#include "pickle/dtype.h"

namespace zerocopy {

// How a storage's bytes get into memory, and why not by mapping.
struct Placement {
  enum class How : std::uint8_t { mapped, copied, inflated };
  How how;
  const char* why;
};

class Content {
 public:
  // `mapping` is `source` in memory, or null: then every record is read.
  Content(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping, Mode mode)
      : source_(std::move(source)), mapping_(std::move(mapping)), mode_(mode) {}

  const std::shared_ptr<const Source>& source() const noexcept { return source_; }

  bool big_endian() const noexcept { return big_endian_; }
  void set_big_endian(bool big_endian) noexcept { big_endian_ = big_endian; }

  Placement placement(const Record& record, const DType& element) const;

  // Whether a storage's bytes lie in the source as they are wanted.
  bool is_plain(const Record& record, const DType& element) const;

  // What a storage is built over. Throws UnsupportedError when it cannot be where `mode` wants it.
  Region storage(const Record& record, const DType& element) const;

  // One of many, and what it is made of.
  struct Need {
    const Record* record;
    const DType* element;
  };

  // Its bytes as they are wanted, in fresh memory.
  Region made(const Record& record, const DType& element) const;

  // The same for all that are read from the file as they are, at once; none for those that are mapped or
  // inflated.
  std::vector<Region> read_storages(std::span<const Need> needs) const;

  // Some bytes of a storage, by their offset in its record, on pages of their own where they are mapped: what
  // is read of the file is the pages that are touched. Never UnsupportedError: it is not there to be written
  // to.
  Region part(const Record& record, const DType& element, Extent extent) const;

  // As Source's. In mode "r+" the file is there to be changed, by us and by others: nothing is asked.
  void require_unchanged() const {
    if (mode_ != Mode::shared) source_->require_unchanged();
  }
  void require_in_place() const {
    source_->require_in_place();
    require_unchanged();
  }

  // Throws UnsupportedError where records inflate to more than the environment variable ZEROCOPY_MAX_INFLATED
  // allows: bytes, or with K, M, G or T behind the number. Without the variable any ratio will do.
  static void require_inflatable(std::span<const Record> records);

  // The bytes of a record, inflated where need be, in fresh memory.
  Region read(const Record& record) const;

 private:
  void require_copies(const Record& record, const char* why) const;

  std::shared_ptr<const Source> source_;
  std::shared_ptr<Mapper> mapping_;
  Mode mode_;
  bool big_endian_ = false;
};

}  // namespace zerocopy
