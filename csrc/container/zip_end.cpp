#include "container/zip_end.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "memory/cursor.h"

namespace zerocopy {
namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kLocatorSignature = 0x07064b50;
constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
constexpr std::uint64_t kEndSize = 22;
constexpr std::uint64_t kLocatorSize = 20;
constexpr std::uint64_t kZip64EndSize = 56;
// signature and size, which the size field does not count
constexpr std::uint64_t kZip64EndPreamble = 12;
// torch's reader searches in blocks of 4096 bytes that overlap by 3, until it has seen 64 KiB.
constexpr std::uint64_t kSearched = 4096 + std::uint64_t{16} * 4093;
constexpr std::uint64_t kEntrySize = 46;
// About ten million records. A sparse file can claim any size at no cost, but memory is not sparse.
constexpr std::uint64_t kMaxDirectory = std::uint64_t{1} << 30U;

// The fields of an end record, 32-bit or zip64.
struct EndRecord {
  std::uint64_t begins;  // offset of the record itself, where the directory has to end
  std::uint64_t disk;
  std::uint64_t directory_disk;
  std::uint64_t entries_here;
  std::uint64_t entries;
  Extent directory;
};

[[noreturn]] void fail(const std::string& reason) { throw FormatError("zip: " + reason); }

// All-ones means "see the zip64 record".
template <typename T>
bool agrees(T narrow, std::uint64_t wide) {
  return narrow == std::numeric_limits<T>::max() || narrow == wide;
}

template <typename T>
bool deferred(T narrow) {
  return narrow == std::numeric_limits<T>::max();
}

// Returns the end of an end record and its comment.
std::uint64_t end_of(ByteSpan tail, std::uint64_t at) {
  Cursor cursor(tail.subspan({at, kEndSize}), "zip end record");
  cursor.skip(20);
  return at + kEndSize + cursor.read<std::uint16_t>();
}

// Searches backwards for the last signature with room for a record behind it, whatever follows, as
// torch's reader and zipfile do. Readers that compare the comment's length with the end of the file
// may take an earlier record: then the archive is ambiguous.
std::optional<std::uint64_t> find_end_record(ByteSpan tail) {
  std::optional<std::uint64_t> found;
  // The signature's last byte is rarer than its first, and memrchr scans 30 bytes a cycle.
  constexpr std::size_t kLast = sizeof(kEndSignature) - 1;
  const std::byte* const begin = tail.data() + kLast;
  std::size_t left = tail.size() - kEndSize + 1;
  while (const void* hit = ::memrchr(begin, kEndSignature >> 24U, left)) {
    left = static_cast<std::size_t>(static_cast<const std::byte*>(hit) - begin);
    if (tail.size() - left > kSearched) break;
    Cursor cursor(tail.subspan({left, kEndSize}), "zip end record");
    if (cursor.read<std::uint32_t>() != kEndSignature) continue;
    if (found && end_of(tail, left) == tail.size()) fail("two end-of-directory records");
    if (!found) found = left;
  }
  return found;
}

// Reads the range in which torch's reader searches, and the locator before it.
Region tail_of(const Source& source) {
  const std::uint64_t size = std::min(source.size(), kSearched + kLocatorSize);
  return source.read({source.size() - size, size});
}

EndRecord read_zip64_end(const Source& source, std::uint64_t locator_at, ByteSpan locator_bytes) {
  Cursor locator(locator_bytes, "zip64 locator");
  locator.skip(4);
  const auto disk = locator.read<std::uint32_t>();
  const auto record_at = locator.read<std::uint64_t>();
  const auto disks = locator.read<std::uint32_t>();
  if (disk != 0 || disks > 1) fail("the archive spans several disks");
  if (!Extent{record_at, kZip64EndSize}.fits(locator_at)) {
    fail("zip64 locator at " + hex(locator_at) + " points to " + hex(record_at));
  }
  const Region bytes = source.read(Extent{record_at, kZip64EndSize});
  Cursor record(bytes.bytes(), "zip64 end record");
  if (record.read<std::uint32_t>() != kZip64EndSignature) {
    fail("no zip64 end record at " + hex(record_at));
  }
  const auto size = record.read<std::uint64_t>();
  if (size != locator_at - record_at - kZip64EndPreamble) {
    fail("zip64 end record at " + hex(record_at) + " does not end at its locator");
  }
  record.skip(4);  // versions
  EndRecord claims{};
  claims.begins = record_at;
  claims.disk = record.read<std::uint32_t>();
  claims.directory_disk = record.read<std::uint32_t>();
  claims.entries_here = record.read<std::uint64_t>();
  claims.entries = record.read<std::uint64_t>();
  claims.directory.size = record.read<std::uint64_t>();
  claims.directory.offset = record.read<std::uint64_t>();
  return claims;
}

EndRecord read_end(const Source& source, ByteSpan tail, std::uint64_t at) {
  const std::uint64_t tail_start = source.size() - tail.size();
  Cursor cursor(tail.subspan({at, kEndSize}), "zip end record");
  cursor.skip(4);
  const auto disk = cursor.read<std::uint16_t>();
  const auto directory_disk = cursor.read<std::uint16_t>();
  const auto entries_here = cursor.read<std::uint16_t>();
  const auto entries = cursor.read<std::uint16_t>();
  const auto size = cursor.read<std::uint32_t>();
  const auto offset = cursor.read<std::uint32_t>();

  if (at >= kLocatorSize) {
    const ByteSpan locator = tail.subspan({at - kLocatorSize, kLocatorSize});
    if (Cursor(locator, "zip64 locator").read<std::uint32_t>() == kLocatorSignature) {
      const std::uint64_t locator_at = tail_start + at - kLocatorSize;
      const EndRecord claims = read_zip64_end(source, locator_at, locator);
      if (!agrees(disk, claims.disk) || !agrees(directory_disk, claims.directory_disk) ||
          !agrees(entries_here, claims.entries_here) || !agrees(entries, claims.entries) ||
          !agrees(size, claims.directory.size) || !agrees(offset, claims.directory.offset)) {
        fail("the end record and the zip64 end record disagree");
      }
      return claims;
    }
  }
  if (deferred(entries) || deferred(size) || deferred(offset)) {
    fail("the end record needs a zip64 end record, which is missing");
  }
  return {tail_start + at, disk, directory_disk, entries_here, entries, {offset, size}};
}

}  // namespace

bool ends_like_a_zip(const Source& source, std::uint64_t begin) {
  if (source.size() < kEndSize) return false;
  try {
    const Region tail = tail_of(source);
    const std::optional<std::uint64_t> at = find_end_record(tail.bytes());
    return at && (end_of(tail.bytes(), *at) == tail.size() || source.size() - tail.size() + *at >= begin);
  } catch (const FormatError&) {  // two end records
    return true;
  }
}

ZipEnd find_zip_end(const Source& source) {
  if (source.size() < kEndSize) {
    fail("the file is truncated: " + std::to_string(source.size()) + " bytes are less than an empty archive");
  }
  const Region tail = tail_of(source);
  const std::optional<std::uint64_t> at = find_end_record(tail.bytes());
  if (!at) {
    fail("the file is truncated: it begins like a zip archive and the directory at its end is missing (" +
         std::to_string(source.size()) +
         " bytes are there; an incomplete download, or the save did not finish)");
  }
  const EndRecord claims = read_end(source, tail.bytes(), *at);

  if (claims.disk != 0 || claims.directory_disk != 0 || claims.entries_here != claims.entries) {
    fail("the archive spans several disks");
  }
  if (!claims.directory.fits(source.size())) {
    fail("central directory of " + std::to_string(claims.directory.size) + " bytes at " +
         hex(claims.directory.offset) + " runs past the end of the file");
  }
  if (claims.directory.offset + claims.directory.size != claims.begins) {
    fail("the central directory does not end where the end record begins");
  }
  if (claims.directory.size > kMaxDirectory) {
    fail("central directory of " + std::to_string(claims.directory.size) + " bytes, more than 1 GiB");
  }
  if (claims.entries > claims.directory.size / kEntrySize) {
    fail(std::to_string(claims.entries) + " entries do not fit a central directory of " +
         std::to_string(claims.directory.size) + " bytes");
  }
  const std::uint64_t end = std::min<std::uint64_t>(end_of(tail.bytes(), *at), tail.size());
  return {claims.directory, claims.entries, tail.size() - end};
}

}  // namespace zerocopy
