// The safe pickle machine: reads a pickle into a Document.
//
// It knows the opcodes that hold data (all protocols' binary ones) and the globals of
// pickle/globals.h. There is no opcode here that calls anything: REDUCE and NEWOBJ of a global that
// is not native become Object nodes, and what may be done with those is decided by the caller.
//
// Limits, so that a small file cannot take much memory or time: values nest 1000 deep, a million
// values wait on the stack, memo indices are below the pickle's length, and a deflated pickle has
// no more opcodes than a million and 64 a byte of what is in the file.
#pragma once

#include <limits>

#include "pickle/document.h"
#include "pickle/storages.h"

namespace zerocopy {

struct PickleForm {
  PersistentId ids = PersistentId::storage;
  // Bytes that the pickle takes in its file: fewer than its length where it is deflated.
  std::uint64_t stored = std::numeric_limits<std::uint64_t>::max();
  // Legacy files give the source of classes along with them: such an id is refused, or taken for the class.
  bool take_modules = false;

  // DEFLATE makes a thousand opcodes of a byte, and each may become a hundred bytes of memory. What a pickle
  // says has to be in proportion to what is in the file; a constant list of a million numbers still is.
  std::uint64_t most_opcodes(std::uint64_t length) const {
    constexpr std::uint64_t kAlways = 1'000'000;
    constexpr std::uint64_t kPerByte = 64;
    return stored >= length ? length : kAlways + kPerByte * stored;
  }
};

// Throws FormatError (the bytes contradict the format), RefusedError (an opcode or a target that is
// refused by policy) or UnsupportedError (legal, and never written by torch.save).
Document read_pickle(Region pickle, PickleForm form = {});

}  // namespace zerocopy
