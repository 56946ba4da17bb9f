#include "pickle/opcode.h"

#include <algorithm>
#include <array>
#include <bit>

namespace zerocopy {
namespace {

enum class Argument : std::uint8_t {
  undefined,  // no such opcode
  none,
  u1,
  u2,
  u4,
  i4,
  u8,
  real_big_endian,
  bytes1,  // length of 1, 4 or 8 bytes, then the bytes
  bytes4,
  bytes8,
  signed_bytes4,  // LONG4 and BINSTRING count with a signed length
  line,
  two_lines,
};

constexpr std::array<Argument, 256> make_arguments() {
  std::array<Argument, 256> table{};
  const auto set = [&table](Argument argument, std::initializer_list<Opcode> opcodes) {
    for (const Opcode opcode : opcodes) table[static_cast<std::uint8_t>(opcode)] = argument;
  };
  using enum Opcode;
  set(Argument::none, {mark,      stop,       pop,        pop_mark, dup,          none,
                       binpersid, reduce,     append,     build,    dict,         empty_dict,
                       appends,   list,       empty_list, obj,      setitem,      tuple,
                       empty_tuple, setitems, newobj,     tuple1,   tuple2,       tuple3,
                       newtrue,   newfalse,   empty_set,  additems, frozenset,    newobj_ex,
                       stack_global, memoize, next_buffer, readonly_buffer});
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
  set(Argument::line, {text_float, text_int, text_long, text_persid, text_string, text_unicode,
                       text_get, text_put});
  set(Argument::two_lines, {global, inst});
  return table;
}

constexpr std::array<Argument, 256> kArguments = make_arguments();

}  // namespace

Instruction Decoder::next() {
  const std::uint64_t begin = cursor_.offset();
  Instruction instruction{};
  instruction.offset = begin;
  instruction.opcode = static_cast<Opcode>(cursor_.read<std::uint8_t>());
  read_argument(instruction);
  check_frame(instruction, begin);
  return instruction;
}

void Decoder::read_argument(Instruction& instruction) {
  switch (kArguments[static_cast<std::uint8_t>(instruction.opcode)]) {
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
    case Argument::u8:
      instruction.number = static_cast<std::int64_t>(cursor_.read<std::uint64_t>());
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
      throw FormatError("pickle: no opcode " + hex(static_cast<std::uint8_t>(instruction.opcode)) +
                        " (at " + hex(instruction.offset) + ")");
  }
}

// PEP 3154: a frame holds whole instructions, and frames do not nest.
void Decoder::check_frame(const Instruction& instruction, std::uint64_t begin) {
  const bool inside = begin < frame_end_;
  if (inside && cursor_.offset() > frame_end_) {
    throw FormatError("pickle: instruction at " + hex(begin) + " crosses the end of its frame");
  }
  if (instruction.opcode != Opcode::frame) return;
  const auto size = static_cast<std::uint64_t>(instruction.number);
  if (inside || size > cursor_.remaining()) {
    throw FormatError("pickle: frame at " + hex(begin) + " runs past what holds it");
  }
  frame_end_ = cursor_.offset() + size;
}

}  // namespace zerocopy
