// The layout of a checkpoint's zip archive, record by record, before any byte of a storage is read.
//
//   steps     header │ padding │ storage 0 │ descriptor, header │ ... │ identifier │ directory
//   literals  ▒▒▒▒▒▒                         ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒                      ▒▒▒▒▒▒▒▒▒
//                                            ↑ both hold the checksum of storage 0, once it is written ↑
//
// Records are stored, their checksums and sizes follow them (data descriptors), and an extra field of
// the local header pads them, byte for byte as torch's writer does it: torch can work out where
// storages are from where the first one is (calculate_storage_offsets). Nothing tells when the file
// was written. Format: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/bytes.h"

namespace zerocopy {

enum class StepKind : std::uint8_t {
  literal,     // `size` bytes of the literals from `begin`
  padding,     // as many bytes 'Z'
  memory,      // of this process, from the address `begin`; 0 if the address is not known yet
  part,        // of the open file `source` from `begin`
  hole,        // zeros
  identifier,  // computes the archive's identifier for the literals at `begin`, and writes nothing
};

struct Step {
  StepKind kind = StepKind::literal;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  int source = -1;
  std::optional<std::uint32_t> known = std::nullopt;  // the checksum that the source file has for them
  std::size_t entry = 0;                              // of the record in the directory
  std::uint64_t place = 0;  // in the literals, of the checksum in the data descriptor
  bool counts = false;      // as bytes of storages
};

// A record as the directory has it.
struct Entry {
  std::string name;
  std::uint64_t offset;  // of the local header
  std::uint64_t size;
  std::uint32_t crc;
  std::uint16_t flags;
  std::uint64_t place = 0;  // in the literals, of the checksum in the directory
};

class ArchivePlan {
 public:
  // `alignment` is that of storages. Without `checksums` they get none; other records always do.
  ArchivePlan(std::uint64_t alignment, bool checksums) : alignment_(alignment), checksums_(checksums) {}

  // Adds a record of these bytes. Names lack the root folder, "archive".
  void add(std::string_view name, ByteSpan content);

  // Adds the record of a storage: `step` says where its bytes are. Returns their offset in the archive.
  std::uint64_t add(std::string_view name, Step step);

  // Adds what comes behind the storages: the version, the identifier and the directory.
  void finish();

  // Returns the checksum of the last record, which was written; 0 if it has none.
  std::uint32_t last_checksum() const noexcept { return entries_.empty() ? 0 : entries_.back().crc; }

  // Returns the descriptors that the steps read.
  std::vector<int> sources() const;

 private:
  friend class ArchiveWriter;

  Entry& begin_record(std::string_view name, std::uint64_t size, std::uint64_t alignment);
  void pad(const std::string& name, std::uint64_t size, std::uint64_t alignment);
  void end_record(const Entry& entry);
  void add_directory();
  void add_step(Step step);
  void end_literal();

  std::uint64_t alignment_;
  bool checksums_;
  std::uint64_t position_ = 0;
  std::vector<Step> steps_;
  std::string literals_;
  std::size_t literal_begin_ = 0;  // of the literals that belong to no step yet
  std::vector<Entry> entries_;
};

}  // namespace zerocopy
