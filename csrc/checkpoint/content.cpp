#include "checkpoint/content.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "checkpoint/batch.h"
#include "container/inflate.h"

namespace zerocopy {
namespace {

// Untyped bytes may be read as the widest element.
constexpr std::uint64_t kWidestElement = 16;

void reverse_units(const Region& bytes, std::size_t unit) {
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
    std::reverse(bytes.data() + at, bytes.data() + at + unit);
  }
}

constexpr std::uint64_t kMaxRecord = std::uint64_t{1} << 44U;  // prevents overflow of sums

std::optional<std::uint64_t> max_inflated() {
  const char* const text = std::getenv("ZEROCOPY_MAX_INFLATED");
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view said(text);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(said.begin(), said.end(), number);
  const std::string_view unit(end, static_cast<std::size_t>(said.end() - end));
  const std::size_t power = unit.empty() ? 0 : std::string_view(".KMGT").find(unit, 1);
  if (error != std::errc() || unit.size() > 1 || power > 4 || number >> (63 - 10 * power) != 0) {
    throw std::invalid_argument(
        "ZEROCOPY_MAX_INFLATED must be a number of bytes, with K, M, G or T behind it or "
        "nothing, not '" +
        std::string(said) + "'");
  }
  return number << (10 * power);
}

}  // namespace

Placement Content::placement(const Record& record, const DType& element) const {
  using enum Placement::How;
  if (record.encoding == Encoding::deflated) return {inflated, "the record is deflated"};
  if (record.encoding == Encoding::external) return {copied, record.external->why()};
  if (big_endian_ && element.swap > 1) return {copied, "the file is big-endian"};
  if (!mapping_) return {copied, "the file is read, not mapped"};
  const std::uint64_t alignment = &element == untyped() ? kWidestElement : element.size;
  if (!mapping_->is_aligned(record.extent.offset, alignment)) {
    return {copied, "the record is not aligned for its elements"};
  }
  return {mapped, ""};
}

bool Content::is_plain(const Record& record, const DType& element) const {
  return record.encoding == Encoding::stored && !(big_endian_ && element.swap > 1);
}

void Content::require_copies(const Record& record, const char* why) const {
  if (mode_ != Mode::shared) return;
  throw UnsupportedError("checkpoint: mode 'r+' cannot write to record " + quote(record.name) + ": " + why);
}

std::vector<Region> Content::read_storages(std::span<const Need> needs) const {
  std::vector<std::size_t> read;
  std::vector<RecordRead> record_reads;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const auto& [record, element] = needs[i];
    const auto [how, why] = placement(*record, *element);
    if (how != Placement::How::copied || record->extent.size == 0) continue;
    require_copies(*record, why);
    read.push_back(i);
    record_reads.push_back({record->extent, element == untyped() ? kWidestElement : element->size});
  }
  std::vector<Region> regions(needs.size());
  std::vector<Region> found = read_batch(*source_, record_reads);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const DType& element = *needs[read[i]].element;
    if (big_endian_ && element.swap > 1) reverse_units(found[i], element.swap);
    regions[read[i]] = std::move(found[i]);
  }
  return regions;
}

Region Content::storage(const Record& record, const DType& element) const {
  const auto [how, why] = placement(record, element);
  if (how == Placement::How::mapped) return mapping_->region(record.extent);
  require_copies(record, why);
  return made(record, element);
}

Region Content::made(const Record& record, const DType& element) const {
  Region bytes = read(record);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

Region Content::read_runs(Extent extent, std::span<const Extent> runs) const {
  if (runs.size() <= 1) return source_->read(extent);
  Region bytes = allocate_pages(static_cast<std::size_t>(extent.size), 0);
  std::vector<Piece> pieces;
  pieces.reserve(runs.size());
  for (const Extent& run : runs) {
    pieces.push_back({{extent.offset + run.offset, run.size}, bytes.slice(run).data()});
  }
  source_->read(pieces);
  return bytes;
}

Region Content::part(const Record& record, const DType& element, Extent extent,
                     std::span<const Extent> runs) const {
  if (!extent.fits(record.size)) throw FormatError("checkpoint: a part exceeds record " + quote(record.name));
  const auto [how, why] = placement(record, element);
  const Extent in_file{record.extent.offset + extent.offset, extent.size};
  if (how == Placement::How::mapped) {
    Region mapped = mapping_->region_apart(in_file);
    advise(mapped.bytes(), Advice::scattered);
    return mapped;
  }
  Region bytes = record.encoding == Encoding::stored ? read_runs(in_file, runs) : read(record).slice(extent);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

std::optional<Region> Content::selected(const Record& record, const DType& element,
                                        const StridedView& view) const {
  if (record.external == nullptr) return std::nullopt;
  Record selected = record;
  selected.size = element.size;
  for (const std::int64_t length : view.size) selected.size *= static_cast<std::uint64_t>(length);
  require_inflatable({&selected, 1});
  std::optional<Region> bytes = record.external->read_view(view);
  if (bytes && big_endian_ && element.swap > 1) reverse_units(*bytes, element.swap);
  return bytes;
}

void Content::require_inflatable(std::span<const Record> records) {
  const std::optional<std::uint64_t> most = max_inflated();
  if (!most) return;
  std::uint64_t size = 0;
  for (const Record& record : records) {
    if (record.encoding != Encoding::stored) size += std::min(record.size, kMaxRecord);
  }
  if (size <= *most) return;
  throw UnsupportedError("checkpoint: its records inflate to " + std::to_string(size) +
                         " bytes, and ZEROCOPY_MAX_INFLATED allows " + std::to_string(*most));
}

void Content::require_readable(std::span<const Record> records) {
  for (const Record& record : records) {
    if (record.external != nullptr) record.external->require_readable();
  }
}

Region Content::read(const Record& record) const {
  if (record.encoding != Encoding::stored) require_inflatable({&record, 1});
  if (record.encoding == Encoding::deflated) return inflate(*source_, record.extent, record.size);
  if (record.encoding == Encoding::external) {
    Region bytes = record.external->read();
    if (bytes.size() == record.size) return bytes;
    throw FormatError("checkpoint: record " + quote(record.name) + " was read as " +
                      std::to_string(bytes.size()) + " bytes");
  }
  return source_->read(record.extent);
}

}  // namespace zerocopy
