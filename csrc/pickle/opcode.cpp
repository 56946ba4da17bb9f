#include "pickle/opcode.h"

#include <bit>

namespace zerocopy {
namespace {

constexpr std::array<Argument, 256> make_arguments() {
  std::array<Argument, 256> table{};
  const auto set = [&table](Argument argument, std::initializer_list<Opcode> opcodes) {
    for (const Opcode opcode : opcodes) table[static_cast<std::uint8_t>(opcode)] = argument;
  };
  using enum Opcode;
  set(Argument::none, {mark,       stop,      pop,          pop_mark, dup,         none,           binpersid,
                       reduce,     append,    build,        dict,     empty_dict,  appends,        list,
                       empty_list, obj,       setitem,      tuple,    empty_tuple, setitems,       newobj,
                       tuple1,     tuple2,    tuple3,       newtrue,  newfalse,    empty_set,      additems,
                       frozenset,  newobj_ex, stack_global, memoize,  next_buffer, readonly_buffer});
  set(Argument::u1, {binint1, binget, binput, proto, ext1});
  set(Argument::u2, {binint2, ext2});
  set(Argument::u4, {long_binget, long_binput, ext4});
  set(Argument::i4, {binint});
  set(Argument::u8, {frame});
  set(Argument::real_big_endian, {binfloat});
  set(Argument::bytes1, {short_binstring, short_binbytes, short_binunicode, long1});
  set(Argument::bytes4, {binunicode, binbytes});
  set(Argument::signed_bytes4, {binstring, long4});
  set(Argument::bytes8, {binunicode8, binbytes8, bytearray8});
  set(Argument::line,
      {text_float, text_int, text_long, text_persid, text_string, text_unicode, text_get, text_put});
  set(Argument::two_lines, {global, inst});
  return table;
}

}  // namespace

constexpr std::array<Argument, 256> kArguments = make_arguments();

void Decoder::read_argument(Argument argument, Instruction& instruction) {
  switch (argument) {
    case Argument::none:
      return;
    case Argument::u1:
      instruction.number = cursor_.read<std::uint8_t>();
      return;
    case Argument::u2:
      instruction.number = cursor_.read<std::uint16_t>();
      return;
    case Argument::u4:
      instruction.number = cursor_.read<std::uint32_t>();
      return;
    case Argument::i4:
      instruction.number = static_cast<std::int32_t>(cursor_.read<std::uint32_t>());
      return;
    case Argument::u8:  // FRAME only
      instruction.number = static_cast<std::int64_t>(cursor_.read<std::uint64_t>());
      enter_frame(instruction);
      return;
    case Argument::real_big_endian:
      instruction.real = std::bit_cast<double>(__builtin_bswap64(cursor_.read<std::uint64_t>()));
      return;
    case Argument::bytes1:
      instruction.bytes = cursor_.take(cursor_.read<std::uint8_t>());
      return;
    case Argument::bytes4:
      instruction.bytes = cursor_.take(cursor_.read<std::uint32_t>());
      return;
    case Argument::bytes8:
      instruction.bytes = cursor_.take(cursor_.read<std::uint64_t>());
      return;
    case Argument::signed_bytes4: {
      const auto size = static_cast<std::int32_t>(cursor_.read<std::uint32_t>());
      if (size < 0) {
        throw FormatError("pickle: negative length at " + hex(instruction.offset));
      }
      instruction.bytes = cursor_.take(static_cast<std::uint64_t>(size));
      return;
    }
    case Argument::line:
      instruction.bytes = cursor_.take_until(std::byte{'\n'});
      return;
    case Argument::two_lines:
      instruction.bytes = cursor_.take_until(std::byte{'\n'});
      instruction.more = cursor_.take_until(std::byte{'\n'});
      return;
    case Argument::undefined:
      throw FormatError("pickle: no opcode " + hex(static_cast<std::uint8_t>(instruction.opcode)) + " (at " +
                        hex(instruction.offset) + ")");
  }
}

// PEP 3154: a frame holds whole instructions, and frames do not nest.
void Decoder::enter_frame(const Instruction& instruction) {
  const auto size = static_cast<std::uint64_t>(instruction.number);
  if (instruction.offset < frame_end_) {
    throw FormatError("pickle: frame at " + hex(instruction.offset) + " inside another");
  }
  if (size > cursor_.remaining()) {
    throw TruncatedError("pickle: frame at " + hex(instruction.offset) + " runs past what holds it");
  }
  frame_end_ = cursor_.offset() + size;
}

void Decoder::leave_frame(const Instruction& instruction) {
  throw FormatError("pickle: instruction at " + hex(instruction.offset) + " crosses the end of its frame");
}

std::size_t pickle_size(ByteSpan bytes) {
  Decoder decoder(bytes);
  Instruction instruction;
  do decoder.next(instruction);
  while (instruction.opcode != Opcode::stop);
  return static_cast<std::size_t>(instruction.offset) + 1;
}

void reject(const Instruction& instruction) {
  const std::string what = "pickle: opcode " + hex(static_cast<std::uint8_t>(instruction.opcode));
  const std::string where = " (at " + hex(instruction.offset) + ")";
  switch (instruction.opcode) {
    case Opcode::inst:
    case Opcode::obj:
    case Opcode::newobj_ex:
    case Opcode::ext1:
    case Opcode::ext2:
    case Opcode::ext4:
    case Opcode::text_persid:
      throw RefusedError(what + ", an unsupported way to name or call code" + where);
    case Opcode::next_buffer:
    case Opcode::readonly_buffer:
      throw FormatError(what + " needs an out-of-band buffer, and the file has none" + where);
    default:
      throw UnsupportedError(what + ", which this reader does not know" + where);
  }
}

std::int64_t decode_long(ByteSpan bytes) {
  // Starts from the sign and shifts the bytes in from the top.
  const bool negative = !bytes.empty() && (bytes[bytes.size() - 1] & std::byte{0x80}) != std::byte{0};
  std::uint64_t number = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    number = (number << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return static_cast<std::int64_t>(number);
}

}  // namespace zerocopy
