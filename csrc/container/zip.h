// A strict reader of zip archives as torch.save writes them.
//
//   ┌ local header │ data ┐ ┌ local header │ data │ descriptor ┐ …  records, back to back from 0
//   ┌ central entry ┐ ┌ central entry ┐ …                           the central directory
//   [zip64 end record] [zip64 locator] end of central directory │ comment │ anything
//
// Sizes, method and flags come from the central directory, since torch's local headers leave sizes
// to data descriptors. The start of the data comes from the local header: its extra field, torch's
// padding, differs from the central one. Format: PKWARE APPNOTE 6.3.10, §4.3-4.5.
//
// The reader takes the end record that torch's (miniz) takes, and is stricter otherwise. Every byte
// up to there belongs to exactly one record or structure, names are unique without case, and local headers
// agree with the directory. So an archive has one reading, and hides nothing.
#pragma once

#include <optional>
#include <vector>

#include "container/record.h"
#include "io/source.h"
#include "memory/cursor.h"
#include "text/name_table.h"

namespace zerocopy {

class Zip {
 public:
  // Reads the directory. Throws FormatError or UnsupportedError.
  explicit Zip(std::shared_ptr<const Source> source);

  // The number of bytes after the archive, which nothing reads.
  std::uint64_t behind() const noexcept { return behind_; }

  // The folder of all records: the first name up to its first '/'.
  std::string_view root() const noexcept { return root_; }

  std::size_t count() const noexcept { return entries_.size(); }
  std::string_view name(std::size_t i) const noexcept { return relative(entries_[i]); }

  // The content size and the stored size of a record, from the directory.
  std::uint64_t size(std::size_t i) const noexcept { return entries_[i].size; }
  std::uint64_t stored_size(std::size_t i) const noexcept { return entries_[i].stored_size; }

  // Where a record's local header begins, and where the next record or the directory does.
  Extent span(std::size_t i) const noexcept {
    return {entries_[i].header, entries_[i].end - entries_[i].header};
  }

  // The CRC-32 of the record's content, from the directory. This class does not verify it.
  std::uint32_t crc(std::size_t i) const noexcept { return entries_[i].crc; }

  // Throws FormatError with a reason why the archive is not a checkpoint. If no record of any folder is
  // called data.pkl, the error says what the archive is. For an archive that contains checkpoints, it is an
  // UnsupportedError.
  [[noreturn]] void fail_as_other(const std::string& reason) const;

  // Returns whether the root folder has a record of exactly this name.
  bool contains(std::string_view name) const;

  // Finds a record by its name in the root folder. Throws FormatError if only the case differs:
  // torch would read that record.
  std::optional<std::size_t> find(std::string_view name) const;

  // Returns whether the record is deflated, from the directory.
  bool is_deflated(std::size_t i) const noexcept;

  // Announces that all local headers will be read.
  void expect_local_headers() const;

  // Reads and checks the local header.
  Record record(std::size_t i) const;

  // Returns the record by the directory alone: the offset of its content is unknown.
  Record listed(std::size_t i) const;

 private:
  Record described(std::size_t i) const;

  struct Entry {
    std::string_view name;
    std::uint64_t header = 0;  // offset of the local header
    std::uint64_t stored_size = 0;
    std::uint64_t size = 0;
    std::uint64_t end = 0;  // the start of the next record or of the directory
    std::uint32_t crc = 0;
    std::uint16_t flags = 0;
    std::uint16_t method = 0;
  };

  static Entry read_entry(Cursor& cursor, std::uint64_t directory_offset);
  void check_layout(std::uint64_t directory_offset);
  void check_names();
  void check_local_sizes(const Entry& entry, std::uint32_t stored_size, std::uint32_t size,
                         std::uint16_t extra_size) const;

  std::string_view relative(const Entry& entry) const noexcept { return entry.name.substr(root_.size() + 1); }

  std::shared_ptr<const Source> source_;
  std::uint64_t behind_ = 0;
  Region directory_bytes_;  // each Entry's name is a view of this
  std::string_view root_;
  std::vector<Entry> entries_;
  NameTable<FoldedHash, FoldedEqual> by_name_;
};

}  // namespace zerocopy
