#include "checkpoint/content.h"

#include <algorithm>

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
  if (big_endian_ && element.swap > 1) return {copied, "the file is big-endian"};
  if (!mapping_) return {copied, "the file is read, not mapped"};
  const std::uint64_t alignment = &element == untyped() ? kWidestElement : element.size;
  if (!mapping_->is_aligned(record.extent.offset, alignment)) {
    return {copied, "the record is not aligned for its elements"};
  }
  return {mapped, ""};
}

Region Content::storage(const Record& record, const DType& element) const {
  const auto [how, why] = placement(record, element);
  if (how == Placement::How::mapped) return mapping_->region(record.extent);
  if (mode_ == Mode::shared) {
    throw UnsupportedError("checkpoint: mode 'r+' cannot write to record " + quote(record.name) + ": " + why);
  }
  Region bytes = read(record);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

Region Content::part(const Record& record, const DType& element, Extent extent) const {
  if (!extent.fits(record.size))
    throw FormatError("checkpoint: a part that leaves record " + quote(record.name));
  const auto [how, why] = placement(record, element);
  const Extent in_file{record.extent.offset + extent.offset, extent.size};
  switch (how) {
    case Placement::How::mapped: {
      Region mapped = mapping_->region_apart(in_file);
      advise(mapped.bytes(), Advice::scattered);
      return mapped;
    }
    case Placement::How::inflated:
      return read(record).slice(extent);
    case Placement::How::copied:
      break;
  }
  Region bytes = source_->read(in_file);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

Region Content::read(const Record& record) const {
  if (record.encoding == Encoding::deflated) return inflate(*source_, record.extent, record.size);
  return source_->read(record.extent);
}

}  // namespace zerocopy
