// What stands in a pickle, for a reader who wants to know and not to load: every global with who
// names it and whether it is called, the opcodes that honest checkpoints lack, and where it ends.
//
// The walk keeps a stack of what it needs to know of each value (a string, a global, or neither),
// so a STACK_GLOBAL takes the operands that an unpickler would take, whatever was pushed, dropped
// or remembered before. Nothing is executed. What it says is for people; whether a file is refused,
// the machine decides.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "memory/bytes.h"

namespace zerocopy {

// A distinct pair of names; texts are views of the pickle.
struct ScannedGlobal {
  std::string_view module;
  std::string_view name;
  std::uint64_t offset = 0;  // of the opcode that names it first
  std::uint8_t opcode = 0;   // that one: GLOBAL, STACK_GLOBAL or INST
  std::uint64_t uses = 0;
  bool called = false;
};

struct ScannedOpcode {
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  // of the first
};

struct PickleScan {
  std::vector<ScannedGlobal> globals;        // in order of appearance
  std::uint64_t globals_left_out = 0;        // uses of further ones
  std::array<ScannedOpcode, 256> opcodes{};  // all of them, by opcode
  ScannedOpcode unresolved;                  // STACK_GLOBALs whose operands are not known
  std::uint64_t end = 0;                     // behind STOP, or where decoding ended
  bool stopped = false;
  bool truncated = false;  // decoding ended at the end of the bytes
  std::string fault;       // why it ended, if not at STOP
};

// Reads up to STOP or to the first byte that cannot be decoded. Names are cut at kMaxGlobalName;
// `limit` bounds the distinct globals that are kept.
PickleScan scan_pickle(ByteSpan pickle, std::size_t limit);

}  // namespace zerocopy
