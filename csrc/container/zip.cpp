#include "container/zip.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "container/inflate.h"
#include "container/zip_end.h"
#include "memory/cursor.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

constexpr std::uint32_t kEntrySignature = 0x02014b50;
constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint64_t kLocalSize = 30;
constexpr std::uint16_t kZip64Field = 0x0001;
constexpr std::uint16_t kUnicodePathField = 0x7075;

constexpr std::uint16_t kMethodStored = 0;
constexpr std::uint16_t kMethodDeflated = 8;

constexpr std::uint16_t kFlagDescriptor = 0x0008;
constexpr std::uint16_t kFlagsDeflateLevel = 0x0006;
constexpr std::uint16_t kFlagUtf8 = 0x0800;
constexpr std::uint16_t kFlagsKnown = kFlagDescriptor | kFlagsDeflateLevel | kFlagUtf8;

constexpr std::uint32_t kDosDirectory = 0x10;

constexpr std::uint64_t kMaxExtra = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint64_t kMaxDescriptor = 24;

template <typename T>
bool deferred(T narrow) {
  return narrow == std::numeric_limits<T>::max();
}

// Example: "zip: entry 3 'archive/data/0' at 0x1f40: "
std::string message(std::string_view name, std::uint64_t offset, const std::string& reason) {
  return "zip: entry " + quote(name) + " at " + hex(offset) + ": " + reason;
}

[[noreturn]] void fail(std::string_view name, std::uint64_t offset, const std::string& reason) {
  throw FormatError(message(name, offset, reason));
}

// Returns the content of the zip64 extra field, or nothing if it is missing. Refuses a Unicode path field,
// which gives the record a second name: Python's zipfile takes that one, torch the first.
ByteSpan find_zip64_field(std::string_view name, std::uint64_t offset, ByteSpan extra) {
  Cursor cursor(extra, "zip extra field");
  ByteSpan found;
  bool seen = false;
  while (cursor.remaining() >= 4) {
    const auto id = cursor.read<std::uint16_t>();
    const auto size = cursor.read<std::uint16_t>();
    const ByteSpan content = cursor.take(size);
    if (id == kUnicodePathField) fail(name, offset, "has a second name, in a Unicode path field (0x7075)");
    if (id != kZip64Field) continue;
    if (seen) fail(name, offset, "has two zip64 fields");
    seen = true;
    found = content;
  }
  if (seen && found.empty()) fail(name, offset, "has an empty zip64 field");
  return found;
}

bool is_folder(std::string_view name) { return name.back() == '/'; }

bool ends_with(std::string_view name, std::string_view ending) {
  return name.size() >= ending.size() && FoldedEqual()(name.substr(name.size() - ending.size()), ending);
}

// Judges by the usual endings of names of checkpoints.
bool is_called_checkpoint(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings{".pt",          ".pth", ".ckpt", ".bin",
                                                     ".safetensors", ".h5",  ".hdf5"};
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return ends_with(name, ending); });
}

}  // namespace

Zip::Zip(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  const ZipEnd end = find_zip_end(*source_);
  behind_ = end.behind;
  directory_bytes_ = source_->read(end.directory);
  Cursor cursor(directory_bytes_.bytes(), "zip central directory");
  entries_.reserve(static_cast<std::size_t>(end.entries));
  for (std::uint64_t i = 0; i < end.entries; ++i) {
    entries_.push_back(read_entry(cursor, end.directory.offset));
  }
  if (cursor.remaining() != 0) {
    throw FormatError("zip: " + std::to_string(cursor.remaining()) +
                      " bytes of the central directory do not belong to an entry");
  }
  if (entries_.empty()) throw FormatError("zip: the archive is empty");
  check_layout(end.directory.offset);
  check_names();
}

Zip::Entry Zip::read_entry(Cursor& cursor, std::uint64_t directory_offset) {
  const std::uint64_t at = directory_offset + cursor.offset();
  if (cursor.read<std::uint32_t>() != kEntrySignature) {
    throw FormatError("zip: no central directory entry at " + hex(at));
  }
  Entry entry;
  cursor.skip(4);  // versions
  entry.flags = cursor.read<std::uint16_t>();
  entry.method = cursor.read<std::uint16_t>();
  cursor.skip(4);  // time, date
  entry.crc = cursor.read<std::uint32_t>();
  const auto stored_size = cursor.read<std::uint32_t>();
  const auto size = cursor.read<std::uint32_t>();
  const auto name_size = cursor.read<std::uint16_t>();
  const auto extra_size = cursor.read<std::uint16_t>();
  const auto comment_size = cursor.read<std::uint16_t>();
  const auto disk = cursor.read<std::uint16_t>();
  cursor.skip(2);  // internal attributes
  const auto attributes = cursor.read<std::uint32_t>();
  const auto header = cursor.read<std::uint32_t>();
  entry.name = cursor.take(name_size).text();
  const ByteSpan extra = cursor.take(extra_size);
  cursor.skip(comment_size);

  // Each all-ones field is continued in the zip64 field, in this order.
  const ByteSpan wide = find_zip64_field(entry.name, at, extra);
  Cursor zip64(wide, "zip64 field");
  entry.size = deferred(size) ? zip64.read<std::uint64_t>() : size;
  entry.stored_size = deferred(stored_size) ? zip64.read<std::uint64_t>() : stored_size;
  entry.header = deferred(header) ? zip64.read<std::uint64_t>() : header;
  const std::uint32_t on_disk = deferred(disk) ? zip64.read<std::uint32_t>() : disk;
  if (!wide.empty() && zip64.offset() == 0) fail(entry.name, at, "has an unneeded zip64 field");

  if (on_disk != 0) fail(entry.name, at, "lies on another disk");
  if ((entry.flags & ~kFlagsKnown) != 0) {
    throw UnsupportedError("zip: entry " + quote(entry.name) + " at " + hex(at) +
                           ": encrypted or otherwise special (flags " + hex(entry.flags) + ")");
  }
  if (entry.method != kMethodStored && entry.method != kMethodDeflated) {
    throw UnsupportedError("zip: entry " + quote(entry.name) + " at " + hex(at) + ": compression method " +
                           std::to_string(entry.method));
  }
  if (entry.method == kMethodStored && entry.size != entry.stored_size) {
    fail(entry.name, at, "is stored, but has two sizes");
  }
  if (entry.method == kMethodDeflated && !inflated_size_is_possible(entry.stored_size, entry.size)) {
    fail(entry.name, at,
         std::to_string(entry.stored_size) + " bytes cannot inflate to " + std::to_string(entry.size));
  }
  if (entry.name.empty()) fail(entry.name, at, "has no name");
  if (is_folder(entry.name) ? entry.size != 0 : (attributes & kDosDirectory) != 0) {
    fail(entry.name, at, "is marked as a folder, but holds bytes");
  }
  const std::uint64_t head = kLocalSize + entry.name.size();
  if (!Extent{entry.header, head}.fits(directory_offset) ||
      !Extent{entry.header + head, entry.stored_size}.fits(directory_offset)) {
    fail(entry.name, at,
         std::to_string(entry.stored_size) + " bytes at " + hex(entry.header) +
             " run into the central directory");
  }
  return entry;
}

// Checks what the directory alone can show: records do not overlap, and gaps hold at most an
// extra field and a descriptor. Only a local header tells its extra field's length, so record()
// checks the rest.
void Zip::check_layout(std::uint64_t directory_offset) {
  std::vector<Entry*> in_file_order;
  in_file_order.reserve(entries_.size());
  for (Entry& entry : entries_) in_file_order.push_back(&entry);
  const auto by_offset = [](const Entry* a, const Entry* b) { return a->header < b->header; };
  if (!std::is_sorted(in_file_order.begin(), in_file_order.end(), by_offset)) {
    std::sort(in_file_order.begin(), in_file_order.end(), by_offset);
  }
  if (in_file_order.front()->header != 0) {
    throw FormatError("zip: " + std::to_string(in_file_order.front()->header) +
                      " bytes before the first record");
  }
  for (std::size_t i = 0; i < in_file_order.size(); ++i) {
    Entry& entry = *in_file_order[i];
    entry.end = i + 1 < in_file_order.size() ? in_file_order[i + 1]->header : directory_offset;
    const std::uint64_t least = entry.header + kLocalSize + entry.name.size() + entry.stored_size;
    if (least > entry.end) fail(entry.name, entry.header, "overlaps the next structure at " + hex(entry.end));
    if (entry.end - least > kMaxExtra + kMaxDescriptor) {
      fail(entry.name, entry.header, "is followed by bytes that do not belong to a record");
    }
  }
}

void Zip::check_names() {
  by_name_ = NameTable<FoldedHash, FoldedEqual>(entries_.size());
  root_ = entries_.front().name.substr(0, entries_.front().name.find('/'));
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const std::string_view name = entry.name;
    if (name.size() <= root_.size() || name[root_.size()] != '/' || !name.starts_with(root_) ||
        root_.empty()) {
      fail_as_other(
          message(name, entry.header, "is not in the folder " + quote(root_) + " of the first record"));
    }
    // Other readers end names at NUL and split them at a backslash.
    if (name.find('\0') != std::string_view::npos || name.find('\\') != std::string_view::npos ||
        !is_utf8(ByteSpan(name), Surrogates::refuse)) {
      fail(name, entry.header, "has a name with NUL, backslash or bytes that are not UTF-8");
    }
    if (!by_name_.insert(relative(entry), i).second) {
      fail(name, entry.header, "has the name of another record (names are compared without case)");
    }
  }
}

void Zip::fail_as_other(const std::string& reason) const {
  const std::string_view first = entries_.front().name;
  if (first == "serialized_exported_program.json") {  // as torch 2.6 and earlier releases write it
    throw FormatError("this is a program saved by torch.export; torch.export.load reads it (" + reason + ")");
  }
  constexpr std::size_t kMaxListed = 5;
  std::string checkpoints;
  std::size_t count = 0;
  for (const Entry& entry : entries_) {
    if (ends_with(entry.name, "data.pkl")) throw FormatError(reason);
    if (is_called_checkpoint(entry.name) && count++ < kMaxListed) {
      checkpoints += (count == 1 ? "" : ", ") + quote(entry.name);
    }
  }
  if (count > kMaxListed) checkpoints += " and " + std::to_string(count - kMaxListed) + " more";
  if (count != 0) {
    throw UnsupportedError("this is a zip archive that holds checkpoints, " + checkpoints +
                           ": extract it, and load these");
  }
  if (ends_with(first, ".npy")) {
    throw FormatError("this is a NumPy archive (.npz), not a checkpoint: numpy.load reads it (" + reason +
                      ")");
  }
  throw FormatError("this is a zip archive, not a checkpoint: extract it, and load the file in it (" +
                    reason + ")");
}

bool Zip::contains(std::string_view name) const {
  const auto* found = by_name_.find(name);
  return found != nullptr && found->name == name;
}

std::optional<std::size_t> Zip::find(std::string_view name) const {
  const auto* found = by_name_.find(name);
  if (found == nullptr || name.empty() || is_folder(name)) return std::nullopt;
  if (found->name != name) throw FormatError("zip: no record " + quote(name) + ", but " + quote(found->name));
  return found->value;
}

bool Zip::is_deflated(std::size_t i) const noexcept { return entries_[i].method == kMethodDeflated; }

void Zip::expect_local_headers() const {
  std::vector<Extent> headers;
  headers.reserve(entries_.size());
  for (const Entry& entry : entries_) headers.push_back({entry.header, kLocalSize + entry.name.size()});
  source_->expect(headers, 0);
}

Record Zip::record(std::size_t i) const {
  try {
    return described(i);
  } catch (const FormatError&) {
    source_->require_unchanged();  // the directory may describe earlier content of the file
    throw;
  }
}

Record Zip::listed(std::size_t i) const {
  const Entry& entry = entries_[i];
  return {relative(entry),
          {Record::kUnknown, entry.stored_size},
          entry.method == kMethodStored ? Encoding::stored : Encoding::deflated,
          entry.size};
}

Record Zip::described(std::size_t i) const {
  const Entry& entry = entries_[i];
  // Reads header and name together. The array suffices for every name that torch writes.
  std::array<std::byte, 256> near;  // NOLINT(*-member-init): read() fills what is used
  std::vector<std::byte> far;
  std::span<std::byte> head(near);
  const std::size_t head_size = kLocalSize + entry.name.size();
  if (head_size > near.size()) {
    far.resize(head_size);
    head = far;
  }
  head = head.first(head_size);
  source_->read(entry.header, head);

  Cursor cursor({head.data(), head.size()}, "zip local header");
  if (cursor.read<std::uint32_t>() != kLocalSignature) {
    fail(entry.name, entry.header, "has no local header at that offset");
  }
  cursor.skip(2);  // version
  const auto flags = cursor.read<std::uint16_t>();
  const auto method = cursor.read<std::uint16_t>();
  cursor.skip(8);  // time, date, CRC-32
  const auto stored_size = cursor.read<std::uint32_t>();
  const auto size = cursor.read<std::uint32_t>();
  const auto name_size = cursor.read<std::uint16_t>();
  const auto extra_size = cursor.read<std::uint16_t>();
  if (name_size != entry.name.size() || cursor.take(name_size).text() != entry.name ||
      method != entry.method || (flags & ~kFlagsKnown) != 0) {
    fail(entry.name, entry.header, "local header and central directory disagree");
  }
  const std::uint64_t data = entry.header + head_size + extra_size;
  if (data > entry.end || entry.stored_size > entry.end - data) {
    fail(entry.name, entry.header, "overlaps the next structure at " + hex(entry.end));
  }
  check_local_sizes(entry, stored_size, size, extra_size);
  const std::uint64_t left = entry.end - data - entry.stored_size;
  const bool descriptor = (entry.flags & kFlagDescriptor) != 0;
  if (left != 0 && !(descriptor && (left == 12 || left == 16 || left == 20 || left == 24))) {
    fail(entry.name, entry.header,
         "is followed by " + std::to_string(left) + " bytes that do not belong to a record");
  }
  return {relative(entry),
          {data, entry.stored_size},
          entry.method == kMethodStored ? Encoding::stored : Encoding::deflated,
          entry.size};
}

// A local header repeats the sizes, or leaves them to the descriptor (0, with flag bit 3) or to its
// zip64 field (all ones).
void Zip::check_local_sizes(const Entry& entry, std::uint32_t stored_size, std::uint32_t size,
                            std::uint16_t extra_size) const {
  const bool descriptor = (entry.flags & kFlagDescriptor) != 0;
  std::uint64_t wide_size = size;
  std::uint64_t wide_stored_size = stored_size;
  if (!descriptor && (deferred(size) || deferred(stored_size))) {
    const Region extra = source_->read(Extent{entry.header + kLocalSize + entry.name.size(), extra_size});
    Cursor zip64(find_zip64_field(entry.name, entry.header, extra.bytes()), "zip64 field");
    if (deferred(size)) wide_size = zip64.read<std::uint64_t>();
    if (deferred(stored_size)) wide_stored_size = zip64.read<std::uint64_t>();
  }
  const auto matches = [&](std::uint64_t local, std::uint64_t central, bool all_ones) {
    return local == central || (descriptor && (local == 0 || all_ones));
  };
  if (!matches(wide_size, entry.size, deferred(size)) ||
      !matches(wide_stored_size, entry.stored_size, deferred(stored_size))) {
    fail(entry.name, entry.header, "local header and central directory give different sizes");
  }
}

}  // namespace zerocopy
