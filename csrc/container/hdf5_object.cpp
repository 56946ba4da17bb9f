#include "container/hdf5_object.h"

#include <algorithm>
#include <array>

#include "memory/cursor.h"

namespace zerocopy::hdf5 {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kMaxDims = 32;  // H5S_MAX_RANK

// Types as stored in the file, little-endian, without trailing padding.
struct Type {
  std::string_view torch;
  std::int64_t size;
  std::string_view encoded;
};
constexpr std::array kTypes{
    Type{"int8", 1, "\x10\x08\0\0\1\0\0\0\0\0\x08\0"sv},
    Type{"uint8", 1, "\x10\0\0\0\1\0\0\0\0\0\x08\0"sv},
    Type{"int16", 2, "\x10\x08\0\0\2\0\0\0\0\0\x10\0"sv},
    Type{"uint16", 2, "\x10\0\0\0\2\0\0\0\0\0\x10\0"sv},
    Type{"int32", 4, "\x10\x08\0\0\4\0\0\0\0\0\x20\0"sv},
    Type{"uint32", 4, "\x10\0\0\0\4\0\0\0\0\0\x20\0"sv},
    Type{"int64", 8, "\x10\x08\0\0\x08\0\0\0\0\0\x40\0"sv},
    Type{"uint64", 8, "\x10\0\0\0\x08\0\0\0\0\0\x40\0"sv},
    Type{"float16", 2, "\x11\x20\x0f\0\2\0\0\0\0\0\x10\0\x0a\5\0\x0a\x0f\0\0\0"sv},
    Type{"float32", 4, "\x11\x20\x1f\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"sv},
    Type{"float64", 8, "\x11\x20\x3f\0\x08\0\0\0\0\0\x40\0\x34\x0b\0\x34\xff\3\0\0"sv},
};

enum class Message : std::uint16_t {
  nothing = 0,
  dataspace = 1,
  datatype = 3,
  old_fill = 4,
  fill = 5,
  layout = 8,
  symbol_table = 0x11,
  modified = 0x12,
};

// Checks the fill value. Its content is unused, since all elements are written, but libhdf5 must
// accept it.
void fill(ByteSpan body) {
  Cursor at(body, "hdf5");
  expect(at.read<std::uint8_t>() == 2 && at.read<std::uint8_t>() <= 3 && at.read<std::uint8_t>() <= 2);
  const auto defined = at.read<std::uint8_t>();
  expect(defined <= 1);
  if (defined == 1) at.skip(at.read<std::uint32_t>());
}

void old_fill(ByteSpan body) {
  Cursor at(body, "hdf5");
  at.skip(at.read<std::uint32_t>());
}

void message(Cursor& at, Object& object) {
  const auto type = static_cast<Message>(at.read<std::uint16_t>());
  const auto size = at.read<std::uint16_t>();
  expect(size % 8 == 0);
  expect((at.read<std::uint8_t>() & ~1U) == 0);  // only "may be constant" is allowed
  at.skip(3);
  const ByteSpan body = at.take(size);
  const auto once = [&](std::optional<ByteSpan>& place) {
    expect(!place);
    place = body;
  };
  switch (type) {
    case Message::dataspace:
      return once(object.dataspace);
    case Message::datatype:
      return once(object.datatype);
    case Message::layout:
      return once(object.layout);
    case Message::symbol_table:
      return once(object.symbol_table);
    case Message::fill:
      return fill(body);
    case Message::old_fill:
      return old_fill(body);
    case Message::nothing:
    case Message::modified:
      return;
    default:
      throw NotPlain();
  }
}

std::vector<std::int64_t> shape_of(ByteSpan dataspace) {
  Cursor at(dataspace, "hdf5");
  expect(at.read<std::uint8_t>() == 1);
  const auto rank = at.read<std::uint8_t>();
  const auto flags = at.read<std::uint8_t>();  // 1: the maximum sizes follow
  expect(rank <= kMaxDims && flags <= 1);
  at.skip(5);
  std::vector<std::int64_t> shape;
  for (std::uint8_t i = 0; i < rank; ++i) {
    shape.push_back(static_cast<std::int64_t>(at.read<std::uint64_t>()));
    expect(shape.back() >= 0);
  }
  for (std::uint8_t i = 0; i < rank && flags == 1; ++i) {
    expect(at.read<std::uint64_t>() >= static_cast<std::uint64_t>(shape[i]));
  }
  return shape;
}

std::uint64_t address_of(ByteSpan layout, std::uint64_t nbytes, std::uint64_t end) {
  Cursor at(layout, "hdf5");
  expect(at.take(2).text() == "\3\1"sv);  // contiguous
  const auto address = at.read<std::uint64_t>();
  expect(at.read<std::uint64_t>() == nbytes);
  if (nbytes == 0) return 0;
  expect(address >= kSuperblock && Extent{address, nbytes}.fits(end));
  return address;
}

}  // namespace

Object read_object(Region bytes) {
  Cursor at(bytes.bytes(), "hdf5");
  expect(at.read<std::uint16_t>() == 1);
  const auto count = at.read<std::uint16_t>();
  expect(at.read<std::uint32_t>() == 1);  // exactly one name
  const auto size = at.read<std::uint32_t>();
  at.skip(4);
  Cursor messages(at.take(size), "hdf5");
  Object object{.bytes = std::move(bytes), .size = at.offset()};
  std::uint16_t seen = 0;
  for (; messages.remaining() != 0; ++seen) message(messages, object);
  expect(seen == count);
  return object;
}

Hdf5Entry read_dataset(const Object& object, std::uint64_t end) {
  const std::string_view encoded = required(object.datatype).text();
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const Type& known) { return encoded.starts_with(known.encoded); });
  expect(type != kTypes.end());
  Hdf5Entry entry{.path = {}, .dtype = std::string(type->torch)};
  entry.shape = shape_of(required(object.dataspace));
  std::int64_t nbytes = type->size;
  for (const std::int64_t n : entry.shape) expect(!__builtin_mul_overflow(nbytes, n, &nbytes));
  entry.offset = address_of(required(object.layout), static_cast<std::uint64_t>(nbytes), end);
  return entry;
}

}  // namespace zerocopy::hdf5
