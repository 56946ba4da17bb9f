#include "container/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "text/name_table.h"

namespace zerocopy {
namespace {

namespace json = simdjson::ondemand;

constexpr std::uint64_t kLengthSize = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the reference reader
constexpr std::size_t kMaxDims = 64;               // the limit of torch
constexpr std::size_t kUsualEntry = 96;            // bytes of JSON per entry, a guess to reserve memory

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
  // Other formats begin with larger numbers.
  constexpr std::uint64_t kAbsurd = std::uint64_t{1} << 48U;
  if (source.size() <= kLengthSize) return false;
  const Region head = source.read({0, kLengthSize + 1});
  return head.bytes().text().back() == '{' && length_of(source) < kAbsurd;
}

// Parses JSON into entries in one pass, without building a tree. Names are views of the header
// unless JSON escapes them. Other strings are copied, because simdjson's strings die with its
// parser.
class SafetensorsHeader::Parser {
 public:
  Parser(SafetensorsHeader& header, std::uint64_t begin, std::uint64_t end)
      : header_(header), begin_(begin), end_(end) {}

  // `text` must be followed by the padding that simdjson may read.
  void parse(ByteSpan text) {
    end_of_text_ = text.text().data() + text.size();
    json::parser parser;
    if (parser.allocate(text.size()) != simdjson::SUCCESS) throw std::bad_alloc();
    json::document document;
    json::object fields;
    require(parser.iterate(text.text(), text.size() + simdjson::SIMDJSON_PADDING).get(document));
    require(document.get_object().get(fields));
    header_.entries_.reserve(text.size() / kUsualEntry + 1);
    bool has_metadata = false;
    for (auto each : fields) {
      json::field field;
      require(std::move(each).get(field));
      const std::string_view name = name_of(field);
      if (name == "__metadata__") {
        if (std::exchange(has_metadata, true)) fail("the name \"__metadata__\" twice");
        read_metadata(field.value());
      } else {
        header_.entries_.push_back(entry(name, field.value()));
      }
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) fail("bytes after its JSON object");
    require_unique(header_.entries_, &SafetensorsEntry::name, "the name ");
  }

  void require_known() const {
    if (!unknown_.empty()) throw UnsupportedError("safetensors header: " + unknown_);
  }

  // Checks that each byte of the file belongs to one tensor.
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
      if (entry.extent.offset < at) fail(entry.name, "its bytes overlap another tensor");
      if (entry.extent.offset > at) fail(entry.name, "the bytes before it do not belong to a tensor");
      at += entry.extent.size;
    }
    if (at != end_) fail(std::to_string(end_ - at) + " bytes after the last tensor");
  }

 private:
  static void require(simdjson::error_code error) {
    if (error != simdjson::SUCCESS)
      fail("not a JSON object (" + std::string(simdjson::error_message(error)) + ")");
  }

  template <typename Item>
  static void require_unique(const std::vector<Item>& items, std::string_view Item::*name, const char* what) {
    NameTable<NameHash> seen(items.size());
    for (const Item& item : items) {
      if (!seen.insert(item.*name, 0).second) fail(what + quote(item.*name) + " twice");
    }
  }

  std::string_view name_of(json::field& field) const {
    const char* begin = field.key().raw();
    const std::string_view behind(begin, static_cast<std::size_t>(end_of_text_ - begin));
    const std::string_view raw = behind.substr(0, behind.find('"'));
    if (raw.find('\\') == std::string_view::npos) return raw;
    std::string_view name;
    require(field.unescaped_key().get(name));
    return kept(name);
  }

  std::string_view kept(std::string_view text) const {
    if (text.empty()) return "";
    auto* room = static_cast<char*>(header_.arena_.allocate(text.size(), 1));
    std::copy(text.begin(), text.end(), room);
    return {room, text.size()};
  }

  void read_metadata(json::value value) {
    if (is_null(value)) return;
    json::object pairs;
    if (value.get_object().get(pairs) != simdjson::SUCCESS) fail("__metadata__ is no object");
    for (auto each : pairs) {
      json::field pair;
      require(std::move(each).get(pair));
      const std::string_view name = name_of(pair);
      std::string_view text;
      if (pair.value().get_string().get(text) != simdjson::SUCCESS)
        fail("__metadata__ holds more than strings");
      header_.metadata_.emplace_back(name, kept(text));
    }
    require_unique(header_.metadata_, &Pair::first, "__metadata__ has ");
  }

  static bool is_null(json::value& value) {
    bool null = false;
    require(value.is_null().get(null));
    return null;
  }

  // Notes an unknown field. The header may still turn out to be invalid, which is reported first.
  void note_unknown(std::string_view tensor, std::string_view key) {
    if (unknown_.empty()) {
      unknown_ =
          "tensor " + quote(tensor) + " has a field " + quote(key) + ", which may change what it means";
    }
  }

  SafetensorsEntry entry(std::string_view name, json::value value) {
    json::object fields;
    if (value.get_object().get(fields) != simdjson::SUCCESS) fail(name, "its entry is not an object");
    const Format* format = nullptr;
    SafetensorsEntry entry{.name = name, .dtype = {}, .shape = {}, .extent = {}};
    unsigned found = 0;
    for (auto each : fields) {
      json::field field;
      require(std::move(each).get(field));
      const std::string_view key = name_of(field);
      const unsigned bit = key == "dtype" ? 1U : key == "shape" ? 2U : key == "data_offsets" ? 4U : 0U;
      if (bit == 0) {
        note_unknown(name, key);
        continue;
      }
      if ((found & bit) != 0) fail(name, "the field " + quote(key) + " twice");
      found |= bit;
      if (bit == 1) {
        format = &format_of(name, field.value());
      } else if (bit == 2) {
        entry.shape = shape_of(name, field.value());
      } else {
        entry.extent = extent_of(name, field.value());
      }
    }
    if (found != 7) fail(name, "dtype, shape or data_offsets are missing");
    entry.dtype = format->name;
    require_size(entry, *format);
    return entry;
  }

  static const Format& format_of(std::string_view tensor, json::value value) {
    std::string_view name;
    if (value.get_string().get(name) != simdjson::SUCCESS) fail(tensor, "its dtype is not a string");
    const auto* format =
        std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return f.name == name; });
    if (format == kFormats.end()) fail(tensor, "unknown dtype " + quote(name));
    return *format;
  }

  std::span<const std::int64_t> shape_of(std::string_view tensor, json::value value) const {
    json::array items;
    if (value.get_array().get(items) != simdjson::SUCCESS) fail(tensor, "its shape is not an array");
    std::array<std::int64_t, kMaxDims> sizes;  // NOLINT(*-member-init): only used elements are set
    std::size_t n = 0;
    for (auto item : items) {
      if (n == kMaxDims) fail(tensor, "more than " + std::to_string(kMaxDims) + " dimensions");
      std::uint64_t size = 0;  // unsigned, because safetensors refuses "-0" too
      const bool is_size = item.get_uint64().get(size) == simdjson::SUCCESS && size >> 63U == 0;
      if (!is_size) fail(tensor, "its shape holds invalid sizes");
      sizes.at(n++) = static_cast<std::int64_t>(size);
    }
    auto* room =
        static_cast<std::int64_t*>(header_.arena_.allocate(n * sizeof(std::int64_t), alignof(std::int64_t)));
    std::copy_n(sizes.begin(), n, room);
    return {room, n};
  }

  Extent extent_of(std::string_view tensor, json::value value) const {
    json::array items;
    if (value.get_array().get(items) != simdjson::SUCCESS) fail(tensor, "its data_offsets are not a pair");
    std::array<std::uint64_t, 2> at{};
    std::size_t n = 0;
    for (auto item : items) {
      if (n == at.size()) fail(tensor, "its data_offsets are not a pair");
      if (item.get_uint64().get(at.at(n++)) != simdjson::SUCCESS)
        fail(tensor, "its data_offsets are not offsets");
    }
    if (n != at.size()) fail(tensor, "its data_offsets are not a pair");
    if (at[0] > at[1]) fail(tensor, "its end is before its begin");
    if (at[1] > end_ - begin_) {
      fail(tensor, "truncated, or its data_offsets are wrong: it ends at " + std::to_string(at[1]) + " of " +
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
  const char* end_of_text_ = nullptr;
  std::string unknown_;
  std::uint64_t begin_;  // start and end of the tensors' bytes
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
  parser.require_known();
}

}  // namespace zerocopy
