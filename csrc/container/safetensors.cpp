#include "container/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "memory/name_table.h"

namespace zerocopy {
namespace {

namespace json = simdjson::dom;

constexpr std::uint64_t kLengthSize = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the reference reader's
constexpr std::size_t kMaxDepth = 8;               // of JSON: honest headers are 3 deep
constexpr std::size_t kMaxDims = 64;               // torch's

struct Format {
  std::string_view name;
  unsigned bits;
};
constexpr std::array kFormats{
    Format{"BOOL", 8},    Format{"F4", 4},          Format{"F6_E2M3", 6},     Format{"F6_E3M2", 6},
    Format{"U8", 8},      Format{"I8", 8},          Format{"F8_E5M2", 8},     Format{"F8_E4M3", 8},
    Format{"F8_E8M0", 8}, Format{"F8_E4M3FNUZ", 8}, Format{"F8_E5M2FNUZ", 8}, Format{"I16", 16},
    Format{"U16", 16},    Format{"F16", 16},        Format{"BF16", 16},       Format{"I32", 32},
    Format{"U32", 32},    Format{"F32", 32},        Format{"C64", 64},        Format{"F64", 64},
    Format{"I64", 64},    Format{"U64", 64},
};

[[noreturn]] void fail(const std::string& reason) { throw FormatError("safetensors header: " + reason); }

[[noreturn]] void fail(std::string_view tensor, const std::string& reason) {
  fail("tensor " + quote(tensor) + ": " + reason);
}

std::uint64_t length_of(const Source& source) {
  std::uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  static_assert(std::endian::native == std::endian::little);
  return length;
}

}  // namespace

bool SafetensorsHeader::recognises(const Source& source) {
  constexpr std::uint64_t kAbsurd = std::uint64_t{1} << 48U;  // what other formats begin with is more
  if (source.size() <= kLengthSize) return false;
  const Region head = source.read({0, kLengthSize + 1});
  return head.bytes().text().back() == '{' && length_of(source) < kAbsurd;
}

// Turns JSON into entries. Every string is copied: simdjson's own live no longer than its parser.
class SafetensorsHeader::Parser {
 public:
  Parser(SafetensorsHeader& header, std::uint64_t begin, std::uint64_t end)
      : header_(header), begin_(begin), end_(end) {}

  // `text` is followed by as many bytes as simdjson may read too far.
  void parse(ByteSpan text) {
    json::parser parser;
    if (parser.allocate(text.size(), kMaxDepth) != simdjson::SUCCESS) throw std::bad_alloc();
    json::object fields;
    if (const auto error = parser.parse(text.text().data(), text.size(), false).get(fields)) {
      fail("no JSON object (" + std::string(simdjson::error_message(error)) + ")");
    }
    NameTable<NameHash> seen(fields.size());
    header_.entries_.reserve(fields.size());
    for (const auto [key, value] : fields) {
      const std::string_view name = kept(key);
      if (!seen.insert(name, 0).second) fail("the name " + quote(name) + " twice");
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        header_.entries_.push_back(entry(name, value));
      }
    }
  }

  // Each byte of the file belongs to one tensor.
  void lay_out() {
    auto& entries = header_.entries_;
    const auto by_place = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::pair(a.extent.offset, a.extent.size) < std::pair(b.extent.offset, b.extent.size);
    };
    if (!std::is_sorted(entries.begin(), entries.end(), by_place)) {
      std::stable_sort(entries.begin(), entries.end(), by_place);
    }
    std::uint64_t at = begin_;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.extent.offset < at) fail(entry.name, "its bytes are another tensor's as well");
      if (entry.extent.offset > at) fail(entry.name, "bytes before it that belong to no tensor");
      at += entry.extent.size;
    }
    if (at != end_) fail(std::to_string(end_ - at) + " bytes after the last tensor");
  }

 private:
  std::string_view kept(std::string_view text) {
    if (text.empty()) return "";
    auto* room = static_cast<char*>(header_.arena_.allocate(text.size(), 1));
    std::copy(text.begin(), text.end(), room);
    return {room, text.size()};
  }

  void read_metadata(json::element value) {
    if (value.is_null()) return;
    json::object pairs;
    if (value.get(pairs) != simdjson::SUCCESS) fail("__metadata__ is no object");
    NameTable<NameHash> seen(pairs.size());
    for (const auto [key, item] : pairs) {
      std::string_view text;
      if (item.get(text) != simdjson::SUCCESS) fail("__metadata__ holds more than strings");
      const std::string_view name = kept(key);
      if (!seen.insert(name, 0).second) fail("__metadata__ has " + quote(name) + " twice");
      header_.metadata_.emplace_back(name, kept(text));
    }
  }

  SafetensorsEntry entry(std::string_view name, json::element value) {
    json::object fields;
    if (value.get(fields) != simdjson::SUCCESS) fail(name, "its entry is no object");
    json::element dtype;
    json::element shape;
    json::element offsets;
    unsigned found = 0;
    for (const auto [key, field] : fields) {
      const unsigned bit = key == "dtype" ? 1U : key == "shape" ? 2U : key == "data_offsets" ? 4U : 0U;
      if (bit == 0) {
        throw UnsupportedError("safetensors header: tensor " + quote(name) + " has a field " + quote(key) +
                               ", which may change what it means");
      }
      if ((found & bit) != 0) fail(name, "the field " + quote(key) + " twice");
      found |= bit;
      (bit == 1 ? dtype : bit == 2 ? shape : offsets) = field;
    }
    if (found != 7) fail(name, "dtype, shape or data_offsets are missing");
    const Format& format = format_of(name, dtype);
    SafetensorsEntry entry{name, format.name, shape_of(name, shape), extent_of(name, offsets)};
    require_size(entry, format);
    return entry;
  }

  static const Format& format_of(std::string_view tensor, json::element value) {
    std::string_view name;
    if (value.get(name) != simdjson::SUCCESS) fail(tensor, "its dtype is no string");
    const auto* format =
        std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return f.name == name; });
    if (format == kFormats.end()) fail(tensor, "no dtype " + quote(name));
    return *format;
  }

  std::span<const std::int64_t> shape_of(std::string_view tensor, json::element value) {
    json::array items;
    if (value.get(items) != simdjson::SUCCESS) fail(tensor, "its shape is no array");
    if (items.size() > kMaxDims) fail(tensor, std::to_string(items.size()) + " dimensions");
    auto* room = static_cast<std::int64_t*>(
        header_.arena_.allocate(items.size() * sizeof(std::int64_t), alignof(std::int64_t)));
    std::size_t n = 0;
    for (const json::element item : items) {
      if (!item.is_int64() || std::int64_t(item) < 0) fail(tensor, "its shape is of no sizes");
      room[n++] = std::int64_t(item);
    }
    return {room, n};
  }

  Extent extent_of(std::string_view tensor, json::element value) const {
    json::array items;
    if (value.get(items) != simdjson::SUCCESS || items.size() != 2)
      fail(tensor, "its data_offsets are no pair");
    std::array<std::uint64_t, 2> at{};
    std::size_t n = 0;
    for (const json::element item : items) {
      if (item.get(at.at(n++)) != simdjson::SUCCESS) fail(tensor, "its data_offsets are no offsets");
    }
    if (at[0] > at[1]) fail(tensor, "it ends before it begins");
    if (at[1] > end_ - begin_) {
      fail(tensor, "truncated, or its data_offsets lie: it ends at " + std::to_string(at[1]) + " of " +
                       std::to_string(end_ - begin_) + " bytes");
    }
    return {begin_ + at[0], at[1] - at[0]};
  }

  static void require_size(const SafetensorsEntry& entry, const Format& format) {
    std::uint64_t bits = format.bits;
    bool overflow = false;
    const bool empty =
        std::any_of(entry.shape.begin(), entry.shape.end(), [](std::int64_t n) { return n == 0; });
    for (const std::int64_t n : entry.shape) {
      if (!empty) overflow = overflow || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(n), &bits);
    }
    if (empty) bits = 0;
    if (overflow) fail(entry.name, "its shape overflows");
    if (bits % 8 != 0) fail(entry.name, "its elements do not fill its last byte");
    if (bits / 8 != entry.extent.size) {
      fail(entry.name, "its shape needs " + std::to_string(bits / 8) + " bytes, it has " +
                           std::to_string(entry.extent.size));
    }
  }

  SafetensorsHeader& header_;
  std::uint64_t begin_;  // of the tensors' bytes, and their end
  std::uint64_t end_;
};

SafetensorsHeader::SafetensorsHeader(const Source& source) {
  if (source.size() < kLengthSize)
    fail("truncated: the file has " + std::to_string(source.size()) + " bytes");
  const std::uint64_t length = length_of(source);
  if (length > kMaxHeader) fail("of " + std::to_string(length) + " bytes, more than 100 MB");
  if (length > source.size() - kLengthSize) {
    fail("truncated: it has " + std::to_string(length) + " bytes, the file " + std::to_string(source.size()));
  }
  const Region padded = Region::allocate(static_cast<std::size_t>(length) + simdjson::SIMDJSON_PADDING);
  const std::span room(padded.data(), padded.size());
  source.read(kLengthSize, room.first(static_cast<std::size_t>(length)));
  std::ranges::fill(room.subspan(static_cast<std::size_t>(length)), std::byte{' '});
  text_ = padded.slice({0, length});
  if (!text_.bytes().text().starts_with('{')) fail("it does not begin with '{'");
  Parser parser(*this, kLengthSize + length, source.size());
  parser.parse(text_.bytes());
  parser.lay_out();
}

}  // namespace zerocopy
