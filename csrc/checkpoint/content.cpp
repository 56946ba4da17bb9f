#include "checkpoint/content.h"

#include <algorithm>

#include "checkpoint/batch.h"
#include "container/inflate.h"

namespace zerocopy {
namespace {

// A typed pointer into bytes of unknown type has to suit the widest element.
constexpr std::uint64_t kWidestElement = 16;

void reverse_units(const Region& bytes, std::size_t unit) {
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
    std::reverse(bytes.data() + at, bytes.data() + at + unit);
  }
}

}  // namespace

Placement Content::placement(const Record& record, const DType& element) const {
  using enum Placement::How;
  if (record.encoding == Encoding::deflated) return {inflated, "the record is deflated"};
  if (record.encoding == Encoding::foreign) return {copied, record.foreign->why()};
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
  std::vector<Wish> wishes;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const auto& [record, element] = needs[i];
    const auto [how, why] = placement(*record, *element);
    if (how != Placement::How::copied || record->extent.size == 0) continue;
    require_copies(*record, why);
    read.push_back(i);
    wishes.push_back({record->extent, element == untyped() ? kWidestElement : element->size});
  }
  std::vector<Region> regions(needs.size());
  std::vector<Region> found = read_batch(*source_, wishes);
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

Region Content::part(const Record& record, const DType& element, Extent extent) const {
  if (!extent.fits(record.size))
    throw FormatError("checkpoint: a part that leaves record " + quote(record.name));
  const auto [how, why] = placement(record, element);
  const Extent in_file{record.extent.offset + extent.offset, extent.size};
  if (how == Placement::How::mapped) {
    Region mapped = mapping_->region_apart(in_file);
    advise(mapped.bytes(), Advice::scattered);
    return mapped;
  }
  Region bytes = record.encoding == Encoding::stored ? source_->read(in_file) : read(record).slice(extent);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

Region Content::read(const Record& record) const {
  if (record.encoding == Encoding::deflated) return inflate(*source_, record.extent, record.size);
  if (record.encoding == Encoding::foreign) {
    Region bytes = record.foreign->read();
    if (bytes.size() == record.size) return bytes;
    throw FormatError("checkpoint: record " + quote(record.name) + " came as " +
                      std::to_string(bytes.size()) + " bytes");
  }
  return source_->read(record.extent);
}

}  // namespace zerocopy
