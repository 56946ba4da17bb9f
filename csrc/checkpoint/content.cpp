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
  if (mapping_.data() == nullptr) return {copied, "the file is read, not mapped"};
  const std::uint64_t alignment = &element == untyped() ? kWidestElement : element.size;
  // NOLINTNEXTLINE(*-reinterpret-cast): an address, to see its alignment
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_.data()) + record.extent.offset;
  if (address % alignment != 0) return {copied, "the record is not aligned for its elements"};
  return {mapped, ""};
}

Region Content::storage(const Record& record, const DType& element) const {
  const auto [how, why] = placement(record, element);
  if (how == Placement::How::mapped) return mapping_.slice(record.extent);
  if (mode_ == Mode::shared) {
    throw UnsupportedError("checkpoint: mode 'r+' cannot write to record " + quote(record.name) + ": " + why);
  }
  Region bytes = read(record);
  if (big_endian_ && element.swap > 1) reverse_units(bytes, element.swap);
  return bytes;
}

Region Content::read(const Record& record) const {
  if (record.encoding == Encoding::deflated) return inflate(*source_, record.extent, record.size);
  return source_->read(record.extent);
}

}  // namespace zerocopy
