// Turns the records of storages into Regions in memory.
//
//   Record (extent in the file)  ──┬─ stored, aligned, native byte order, mapped ─→ slice of the mapping
//                                  └─ otherwise ─→ fresh memory: read, inflated, swapped as needed
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "container/record.h"
#include "io/mapping.h"
#include "io/source.h"
#include "memory/budget.h"
#include "pickle/dtype.h"

namespace zerocopy {

// The method by which a storage's bytes reach memory, and the reason if they are not mapped.
struct Placement {
  enum class How : std::uint8_t { mapped, copied, inflated };
  How how;
  const char* why;
};

class Content {
 public:
  // `mapping` maps `source`. If it is null, every record is read. `fixed_budget` is that of Document.
  Content(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping, Mode mode,
          std::uint64_t fixed_budget = Budget::kFixed)
      : source_(std::move(source)), mapping_(std::move(mapping)), mode_(mode), fixed_budget_(fixed_budget) {}

  const std::shared_ptr<const Source>& source() const noexcept { return source_; }

  std::uint64_t fixed_budget() const noexcept { return fixed_budget_; }

  bool big_endian() const noexcept { return big_endian_; }
  void set_big_endian(bool big_endian) noexcept { big_endian_ = big_endian; }

  Placement placement(const Record& record, const DType& element) const;

  // Returns whether the source holds the storage's bytes in their final form.
  bool is_plain(const Record& record, const DType& element) const;

  // Returns the region for a storage. Throws UnsupportedError if `mode` demands a mapping that is
  // impossible.
  Region storage(const Record& record, const DType& element) const;

  // A record, and the element type of its storage.
  struct Need {
    const Record* record;
    const DType* element;
  };

  // Returns the storage's bytes in fresh memory.
  Region made(const Record& record, const DType& element) const;

  // Returns the same for all storages whose bytes can be read directly, in one batch. The regions
  // of mapped or inflated storages stay empty.
  std::vector<Region> read_storages(std::span<const Need> needs) const;

  // Returns a part of a storage, by its offset in the record. Mapped parts lie on separate pages,
  // so only touched pages are read. If the part is read and not mapped, only `runs` are read, whose
  // offsets are relative to the part. Without runs the whole part is read. Never throws
  // UnsupportedError, since the part is not written to.
  Region part(const Record& record, const DType& element, Extent extent, std::span<const Extent> runs) const;

  // Returns the elements of a view, one after the other, if a library can read them without the
  // rest of the record. Otherwise returns nullopt.
  std::optional<Region> selected(const Record& record, const DType& element, const StridedView& view) const;

  // Like the functions of Source. Mode "r+" allows changes by any process, so nothing is checked.
  void require_unchanged() const {
    if (mode_ != Mode::shared) source_->require_unchanged();
  }
  void require_in_place() const {
    source_->require_in_place();
    require_unchanged();
  }

  // Throws UnsupportedError if records inflate to more than the environment variable
  // ZEROCOPY_MAX_INFLATED allows: a number of bytes, optionally with K, M, G or T. Without the
  // variable any size is allowed.
  static void require_inflatable(std::span<const Record> records);

  // Throws UnsupportedError if one of the records is in a file that is never opened.
  static void require_readable(std::span<const Record> records);

  // Reads the content of a record into fresh memory, inflated if needed.
  Region read(const Record& record) const;

 private:
  Region read_runs(Extent extent, std::span<const Extent> runs) const;
  void require_copies(const Record& record, const char* why) const;

  std::shared_ptr<const Source> source_;
  std::shared_ptr<Mapper> mapping_;
  Mode mode_;
  std::uint64_t fixed_budget_;
  bool big_endian_ = false;
};

}  // namespace zerocopy
