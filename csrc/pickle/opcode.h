// The pickle instruction set (Python's Lib/pickletools.py), and its decoder.
//
// Decoder turns bytes into Instructions, and reads and bounds every argument. The machine and the
// walk that lists globals share it, so they agree where instructions end.
#pragma once

#include <array>

#include "memory/cursor.h"

namespace zerocopy {

enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  text_float = 'F',
  text_int = 'I',
  binint = 'J',
  binint1 = 'K',
  text_long = 'L',
  binint2 = 'M',
  none = 'N',
  text_persid = 'P',
  binpersid = 'Q',
  reduce = 'R',
  text_string = 'S',
  binstring = 'T',
  short_binstring = 'U',
  text_unicode = 'V',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  dict = 'd',
  empty_dict = '}',
  appends = 'e',
  text_get = 'g',
  binget = 'h',
  inst = 'i',
  long_binget = 'j',
  list = 'l',
  empty_list = ']',
  obj = 'o',
  text_put = 'p',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  binfloat = 'G',
  proto = 0x80,
  newobj = 0x81,
  ext1 = 0x82,
  ext2 = 0x83,
  ext4 = 0x84,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  binbytes = 'B',
  short_binbytes = 'C',
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  newobj_ex = 0x92,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
  next_buffer = 0x97,
  readonly_buffer = 0x98,
};

// The form of an opcode's argument.
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

extern const std::array<Argument, 256> kArguments;

// Fields that the opcode does not use keep their old values: clearing them would cost as much as
// the rest of decoding.
struct Instruction {
  Opcode opcode{};
  std::uint64_t offset = 0;  // of the opcode in the pickle
  std::int64_t number = 0;   // integer argument
  double real = 0;           // BINFLOAT
  ByteSpan bytes;            // string or bytes argument; first line of GLOBAL and INST
  ByteSpan more;             // the second line of GLOBAL and INST
};

class Decoder {
 public:
  explicit Decoder(ByteSpan pickle) : cursor_(pickle, "pickle") {}

  // Throws FormatError on an undefined opcode, an argument that runs past the end, or an
  // instruction that crosses the end of its frame.
  void next(Instruction& instruction) {
    instruction.offset = cursor_.offset();
    const auto opcode = cursor_.read<std::uint8_t>();
    instruction.opcode = static_cast<Opcode>(opcode);
    const Argument argument = kArguments[opcode];
    if (argument == Argument::u1) {  // half of all instructions: BINPUT, BINGET, BININT1
      instruction.number = cursor_.read<std::uint8_t>();
    } else if (argument != Argument::none) {
      read_argument(argument, instruction);
    }
    if (instruction.offset < frame_end_ && cursor_.offset() > frame_end_) leave_frame(instruction);
  }

 private:
  void read_argument(Argument argument, Instruction& instruction);
  void enter_frame(const Instruction& instruction);
  [[noreturn]] static void leave_frame(const Instruction& instruction);

  Cursor cursor_;
  std::uint64_t frame_end_ = 0;
};

// Returns the length of the pickle at the start of `bytes`. Throws as Decoder does: TruncatedError
// if the pickle does not end in `bytes`.
std::size_t pickle_size(ByteSpan bytes);

// Throws the reason why the machine does not execute this opcode: RefusedError for other ways to
// name or call code, UnsupportedError for opcodes that binary protocols never write.
[[noreturn]] void reject(const Instruction& instruction);

// Decodes the integer of LONG1 and LONG4: two's complement, little-endian, at most 8 bytes.
std::int64_t decode_long(ByteSpan bytes);

}  // namespace zerocopy
