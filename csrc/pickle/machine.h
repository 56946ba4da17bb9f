// The safe pickle machine: reads a pickle into a Document.
//
// It knows the opcodes that hold data (of all binary protocols) and the globals of
// pickle/globals.h. None of its opcodes calls a function. Calls of other globals become Object
// nodes, and the caller decides about these.
//
// Limits keep memory and time in proportion to the file. Values nest at most 1000 deep, and the
// stack holds a million values. Memo indices stay below the pickle's length. A deflated pickle may
// have a million opcodes, plus 64 per byte in the file.
#pragma once

#include <limits>
#include <string_view>

#include "pickle/document.h"
#include "pickle/storages.h"

namespace zerocopy {

struct PickleForm {
  PersistentId ids = PersistentId::storage;
  // The pickle's bytes in the file: fewer than its length if it is deflated.
  std::uint64_t stored = std::numeric_limits<std::uint64_t>::max();
  // Whether unknown objects become stubs, which cannot run anything. Then the machine also takes
  // calls of values, opcodes that call in other ways, dropped values, and legacy ids of classes.
  bool stubs = false;
  std::uint64_t fixed_budget = Budget::kFixed;  // that of Document
  std::string_view folder = {};                 // comes before the key of each storage

  // DEFLATE makes a thousand opcodes of a byte, and each opcode may take a hundred bytes of memory.
  // So the number of opcodes is bounded by the bytes in the file. Constant lists of a million
  // numbers pass.
  std::uint64_t most_opcodes(std::uint64_t length) const {
    constexpr std::uint64_t kAlways = 1'000'000;
    constexpr std::uint64_t kPerByte = 64;
    return stored >= length ? length : kAlways + kPerByte * stored;
  }
};

// Throws FormatError (the bytes contradict the format), RefusedError (an opcode or a call that
// policy refuses) or UnsupportedError (legal, but never written by torch.save).
Document read_pickle(Region pickle, PickleForm form = {});

// As before, into a document of several pickles: `pickle` is a part of its text. Returns the value. After the
// last one, call check_repeated_work().
Value read_pickle(Document& document, ByteSpan pickle, const PickleForm& form);

}  // namespace zerocopy
