#include "container/archive_plan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "container/archive_identifier.h"
#include "container/checksum.h"

namespace zerocopy {
namespace {

constexpr std::string_view kRoot = "archive/";
constexpr std::uint64_t kSmallestAlignment = 64;
constexpr std::uint64_t kAllOnes16 = 0xFFFF;
constexpr std::uint64_t kAllOnes32 = 0xFFFFFFFF;
constexpr std::uint64_t kLocalHeader = 30;
constexpr std::uint64_t kField = 4;  // the header of an extra field
constexpr std::uint64_t kCentralChecksum = 16;
constexpr std::uint64_t kDescriptorChecksum = 4;
// The most padding, with its header, that fits beside a zip64 field with all three numbers.
constexpr std::uint64_t kMaxPadding = kAllOnes16 - kField - std::uint64_t{3} * 8;
constexpr std::uint16_t kHasDescriptor = 0x8;
constexpr std::uint16_t kUtf8 = 0x800;
constexpr std::uint16_t kVersion = 20;
constexpr std::uint16_t kWideVersion = 45;
constexpr std::uint16_t kFirstDate = 0x21;  // 1 January 1980
constexpr std::uint16_t kWideFieldId = 1;
constexpr std::uint16_t kPaddingFieldId = 0x4246;  // "FB"

// Appends little-endian numbers.
class Packer {
 public:
  explicit Packer(std::string& to) : to_(to) {}

  template <typename Number>
  Packer& operator<<(Number number) {
    for (std::size_t i = 0; i < sizeof number; ++i) to_.push_back(static_cast<char>(number >> (8U * i)));
    return *this;
  }

  Packer& operator<<(std::string_view text) {
    to_.append(text);
    return *this;
  }

 private:
  std::string& to_;
};

std::uint16_t narrow16(std::uint64_t value) {
  return static_cast<std::uint16_t>(std::min(value, kAllOnes16));
}
std::uint32_t narrow32(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min(value, kAllOnes32));
}

bool is_wide(std::uint64_t size, std::uint64_t at) { return size >= kAllOnes32 || at >= kAllOnes32; }

// Returns the zip64 extra field, with the numbers that 32 bits cannot hold. As in torch's archives, the
// field has the offset in the local header too.
std::string wide_field(std::uint64_t size, std::uint64_t at) {
  std::string values;
  if (size >= kAllOnes32) Packer(values) << size << size;
  if (at >= kAllOnes32) Packer(values) << at;
  if (values.empty()) return values;
  std::string field;
  Packer(field) << kWideFieldId << static_cast<std::uint16_t>(values.size()) << std::string_view(values);
  return field;
}

// Returns the size in bytes, its own header included, of the field that pads a record whose header is at
// `at`.
std::uint64_t padding_of(std::string_view name, std::uint64_t size, std::uint64_t at,
                         std::uint64_t alignment) {
  const std::uint64_t start = at + kLocalHeader + name.size() + wide_field(size, at).size() + kField;
  return kField + (alignment - start % alignment) % alignment;
}

std::uint32_t checksum_of_zeros(std::uint64_t size) {
  const std::array<std::byte, 4096> zeros{};
  std::uint32_t crc = 0;
  for (; size > 0; size -= std::min<std::uint64_t>(size, zeros.size())) {
    crc = crc32(crc, {zeros.data(), static_cast<std::size_t>(std::min<std::uint64_t>(size, zeros.size()))});
  }
  return crc;
}

void pack_local_header(std::string& to, const Entry& entry, std::uint64_t size, std::uint64_t extra) {
  Packer(to) << std::uint32_t{0x04034B50} << kVersion << entry.flags << std::uint32_t{0} << kFirstDate
             << (size == 0 ? 0 : entry.crc) << narrow32(size) << narrow32(size)
             << static_cast<std::uint16_t>(entry.name.size()) << static_cast<std::uint16_t>(extra)
             << std::string_view(entry.name);
}

}  // namespace

void ArchivePlan::add(std::string_view name, ByteSpan content) {
  Entry& entry = begin_record(name, content.size(), kSmallestAlignment);
  entry.crc = crc32(0, content);
  literals_.append(content.text());
  position_ += content.size();
  end_record(entry);
}

std::uint64_t ArchivePlan::add(std::string_view name, Step step) {
  const Entry& entry = begin_record(name, step.size, alignment_);
  const std::uint64_t at = position_;
  if (step.size > 0) {
    step.entry = entries_.size() - 1;
    step.counts = true;
    end_literal();
    step.place = literals_.size() + kDescriptorChecksum;
    add_step(step);
  }
  end_record(entry);
  return at;
}

void ArchivePlan::finish() {
  add("version", ByteSpan("3\n"));
  const Entry& entry = begin_record(".data/serialization_id", kIdentifierDigits, kSmallestAlignment);
  end_literal();
  add_step({.kind = StepKind::identifier,
            .begin = literals_.size(),
            .entry = entries_.size() - 1,
            .place = literals_.size() + kIdentifierDigits + kDescriptorChecksum});
  literals_.append(kIdentifierDigits, '0');
  position_ += kIdentifierDigits;
  end_record(entry);
  add_directory();
}

std::vector<int> ArchivePlan::sources() const {
  std::vector<int> found;
  for (const Step& step : steps_) {
    if (step.kind == StepKind::part) found.push_back(step.source);
  }
  return found;
}

Entry& ArchivePlan::begin_record(std::string_view name, std::uint64_t size, std::uint64_t alignment) {
  const std::string whole = std::string(kRoot) + std::string(name);
  pad(whole, size, alignment);
  const auto flags = static_cast<std::uint16_t>(kUtf8 | (size > 0 ? kHasDescriptor : 0));
  Entry& entry = entries_.emplace_back(Entry{whole, position_, size, 0, flags});
  const std::string wide = wide_field(size, position_);
  const std::uint64_t padding = padding_of(whole, size, position_, alignment);
  const std::size_t before = literals_.size();
  pack_local_header(literals_, entry, 0, wide.size() + padding);
  Packer(literals_) << std::string_view(wide) << kPaddingFieldId
                    << static_cast<std::uint16_t>(padding - kField);
  position_ += literals_.size() - before;
  end_literal();
  add_step({.kind = StepKind::padding, .size = padding - kField});
  return entry;
}

// Where the padding is too large for an extra field, fills it with records of zeros, to which no pickle
// refers.
void ArchivePlan::pad(const std::string& name, std::uint64_t size, std::uint64_t alignment) {
  while (padding_of(name, size, position_, alignment) > kMaxPadding) {
    const std::string filler = std::string(kRoot) + ".padding/" + std::to_string(entries_.size());
    const std::uint64_t empty = kLocalHeader + filler.size();
    const std::uint64_t zeros = padding_of(name, size, position_ + empty, alignment) - kField;
    const Entry& entry =
        entries_.emplace_back(Entry{filler, position_, zeros, checksum_of_zeros(zeros), kUtf8});
    pack_local_header(literals_, entry, zeros, 0);
    position_ += empty;
    end_literal();
    add_step({.kind = StepKind::hole, .size = zeros});
  }
}

void ArchivePlan::end_record(const Entry& entry) {
  if (entry.size == 0) return;
  const std::size_t before = literals_.size();
  Packer packer(literals_);
  packer << std::uint32_t{0x08074B50} << entry.crc;
  if (is_wide(entry.size, entry.offset)) {
    packer << entry.size << entry.size;
  } else {
    packer << narrow32(entry.size) << narrow32(entry.size);
  }
  position_ += literals_.size() - before;
}

void ArchivePlan::add_directory() {
  const std::uint64_t offset = position_;
  const std::size_t before = literals_.size();
  Packer packer(literals_);
  for (Entry& entry : entries_) {
    const std::string wide = wide_field(entry.size, entry.offset);
    const std::uint16_t version = wide.empty() ? kVersion : kWideVersion;
    entry.place = literals_.size() + kCentralChecksum;
    packer << std::uint32_t{0x02014B50} << version << version << entry.flags << std::uint32_t{0} << kFirstDate
           << entry.crc << narrow32(entry.size) << narrow32(entry.size)
           << static_cast<std::uint16_t>(entry.name.size()) << static_cast<std::uint16_t>(wide.size())
           << std::uint64_t{0} << std::uint16_t{0} << narrow32(entry.offset) << std::string_view(entry.name)
           << std::string_view(wide);
  }
  const std::uint64_t size = literals_.size() - before;
  const std::uint64_t count = entries_.size();
  // The zip64 end record, which torch always writes, its locator, and the end record.
  packer << std::uint32_t{0x06064B50} << std::uint64_t{44} << kWideVersion << kWideVersion << std::uint64_t{0}
         << count << count << size << offset;
  packer << std::uint32_t{0x07064B50} << std::uint32_t{0} << offset + size << std::uint32_t{1};
  packer << std::uint32_t{0x06054B50} << std::uint32_t{0} << narrow16(count) << narrow16(count)
         << narrow32(size) << narrow32(offset) << std::uint16_t{0};
  position_ += literals_.size() - before;
  end_literal();
}

void ArchivePlan::add_step(Step step) {
  if (step.kind != StepKind::literal && step.kind != StepKind::identifier) position_ += step.size;
  if (step.size > 0 || step.kind == StepKind::identifier) steps_.push_back(step);
}

void ArchivePlan::end_literal() {
  if (const std::size_t size = literals_.size() - literal_begin_; size > 0) {
    steps_.push_back({.kind = StepKind::literal, .begin = literal_begin_, .size = size});
    literal_begin_ = literals_.size();
  }
}

}  // namespace zerocopy
