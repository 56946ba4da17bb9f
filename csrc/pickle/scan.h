// Lists a pickle's content for inspection without loading: every global and whether it is called,
// the opcodes that honest checkpoints lack, and the end of the pickle.
//
// The walk models the stack and memo with one word per value: a string, a global, or unknown. So
// STACK_GLOBAL gets the operands that an unpickler would use. Nothing is executed. The result
// informs people; the machine decides whether a file is refused.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "memory/bytes.h"

namespace zerocopy {

// A distinct pair of names, as views of the pickle.
struct ScannedGlobal {
  std::string_view module;
  std::string_view name;
  std::uint64_t offset = 0;  // of the opcode that names it first
  std::uint8_t opcode = 0;   // the opcode at `offset`: GLOBAL, STACK_GLOBAL or INST
  std::uint64_t uses = 0;
  bool called = false;
};

struct ScannedOpcode {
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  // of the first occurrence
};

struct PickleScan {
  std::vector<ScannedGlobal> globals;        // in order of appearance
  std::uint64_t globals_left_out = 0;        // uses of globals beyond the limit
  std::array<ScannedOpcode, 256> opcodes{};  // indexed by opcode
  ScannedOpcode unresolved;                  // STACK_GLOBALs with unknown operands
  std::uint64_t end = 0;                     // after STOP, or where decoding failed
  bool stopped = false;
  bool truncated = false;  // whether the bytes ended too early
  std::string fault;       // the decoding error, if any
};

// Stops at STOP or at the first byte that cannot be decoded. Cuts names at kMaxGlobalName. `limit`
// bounds the number of distinct globals.
PickleScan scan_pickle(ByteSpan pickle, std::size_t limit);

}  // namespace zerocopy
