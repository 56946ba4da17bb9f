#include "pickle/plain.h"

#include "text/utf8.h"

namespace zerocopy {
namespace {

constexpr std::int64_t kMaxDeviceIndex = 127;  // c10::DeviceIndex is an int8_t
constexpr std::size_t kMaxDeviceName = 64;

Value copy_sequence(Document& document, Kind kind, const Sequence& from) {
  document.charge(from.items.size());
  auto& sequence = document.make<Sequence>(kind);
  sequence.depth = from.depth;
  sequence.items.assign(document.arena(), from.items);
  return Value::of(sequence);
}

// Converts a text to latin-1, since protocol 2 stores bytes as such texts.
ByteSpan to_latin1(Document& document, const Arguments& arguments, std::string_view utf8) {
  auto* room = static_cast<std::byte*>(document.arena().allocate(utf8.size(), 1));
  std::size_t size = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    auto code = static_cast<unsigned char>(utf8[i]);
    if (code >= 0x80) {
      // Two bytes hold up to U+07FF; latin-1 ends at U+00FF, whose first byte is 0xC3.
      if (code > 0xC3 || i + 1 == utf8.size()) arguments.fail("a character that is not in latin-1");
      code = static_cast<unsigned char>(((code & 0x1FU) << 6U) |
                                        (static_cast<unsigned char>(utf8[++i]) & 0x3FU));
    }
    room[size++] = std::byte{code};
  }
  return {room, size};
}

bool is_latin1(std::string_view codec) { return codec == "latin1" || codec == "latin-1"; }

// Accepts only built-in codecs: a name from the file would make Python import encodings.<name>.
ByteSpan encode(Document& document, const Arguments& arguments) {
  const std::string_view codec = arguments.text(1);
  const std::string_view text = arguments.text(0);
  document.charge(text.size());
  if (is_latin1(codec)) return to_latin1(document, arguments, text);
  if (codec == "utf-8" || codec == "utf8") {
    if (!is_utf8(ByteSpan(text), Surrogates::refuse)) arguments.fail("a lone surrogate");
    return ByteSpan(text);
  }
  if (codec != "ascii") arguments.refuse("codec " + quote(codec));
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) arguments.fail("a character that is not in ascii");
  }
  return ByteSpan(text);
}

}  // namespace

Value make_ordered_dict(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  auto& mapping = document.make<Mapping>(Kind::ordered_dict);
  if (arguments.count() == 0) return Value::of(mapping);
  if (!arguments[0].is(Kind::list)) arguments.fail("is not a list", 0);
  const auto& pairs = arguments[0].as<Sequence>();
  document.charge(pairs.items.size());
  mapping.depth = static_cast<std::uint16_t>(pairs.depth + 1);
  for (const Value& pair : pairs.items) {  // Python 2 wrote pairs as lists
    const bool is_pair =
        (pair.is(Kind::tuple) || pair.is(Kind::list)) && pair.as<Sequence>().items.size() == 2;
    if (!is_pair) arguments.fail("holds other items than pairs", 0);
    const auto& items = pair.as<Sequence>().items;
    arguments.require_key(document, items[0]);
    mapping.items.push_back(document.arena(), {items[0], items[1]});
  }
  return Value::of(mapping);
}

Value make_counter(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  auto& mapping = document.make<Mapping>(Kind::counter);
  if (arguments.count() == 0) return Value::of(mapping);
  if (!arguments[0].is(Kind::dict)) arguments.fail("is not a dict", 0);
  const auto& counts = arguments[0].as<Mapping>();
  document.charge(counts.items.size());
  mapping.depth = counts.depth;
  mapping.items.assign(document.arena(), counts.items);
  return Value::of(mapping);
}

Value make_set(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  if (arguments.count() == 0) return Value::of(document.make<Sequence>(Kind::set));
  if (!arguments[0].is(Kind::list)) arguments.fail("is not a list", 0);
  const auto& items = arguments[0].as<Sequence>();
  for (const Value& item : items.items) arguments.require_key(document, item);
  return copy_sequence(document, Kind::set, items);
}

Value make_size(Document& document, const Arguments& arguments) {
  arguments.require_count(1, 1);
  return copy_sequence(document, Kind::size, *Integers(arguments, 0).sequence());
}

Value make_device(Document& document, const Arguments& arguments) {
  arguments.require_count(1, 2);
  auto& device = document.make<Device>(Kind::device);
  device.type = arguments.text(0);
  if (device.type.size() > kMaxDeviceName || !is_utf8(ByteSpan(device.type), Surrogates::refuse))
    arguments.fail("device " + quote(device.type));
  if (arguments.count() == 2) {
    const std::int64_t index = arguments.integer(1);
    if (index < 0 || index > kMaxDeviceIndex) arguments.fail("device index " + std::to_string(index));
    device.index = arguments[1];
  }
  return Value::of(device);
}

Value make_complex(Document& document, const Arguments& arguments) {
  arguments.require_count(2, 2);
  auto& number = document.make<Complex>(Kind::complex);
  number.real = arguments.real(0);
  number.imaginary = arguments.real(1);
  return Value::of(number);
}

Value encode_text(Document& document, const Arguments& arguments) {
  arguments.require_count(2, 2);
  auto& blob = document.make<Blob>(Kind::bytes);
  blob.bytes = encode(document, arguments);
  return Value::of(blob);
}

// bytes(): protocol 2 writes b"" so.
Value make_empty_bytes(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 0);
  return Value::of(document.make<Blob>(Kind::bytes));
}

// bytearray(), bytearray(bytes) or bytearray(text, 'latin-1'), but not bytearray(n).
Value make_byte_array(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 2);
  auto& blob = document.make<Blob>(Kind::byte_array);
  if (arguments.count() == 2) {
    blob.bytes = encode(document, arguments);
  } else if (arguments.count() == 1) {
    if (!arguments[0].is(Kind::bytes)) arguments.fail("is not bytes", 0);
    blob.bytes = arguments[0].as<Blob>().bytes;
    document.charge(blob.bytes.size());
  }
  return Value::of(blob);
}

}  // namespace zerocopy
