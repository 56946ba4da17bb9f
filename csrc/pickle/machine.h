// The safe pickle machine: reads a pickle into a Document.
//
// It knows the opcodes that hold data (all protocols' binary ones) and the globals of
// pickle/globals.h. There is no opcode here that calls anything: REDUCE and NEWOBJ of a global that
// is not native become Object nodes, and what may be done with those is decided by the caller.
//
// Limits, so that a small file cannot take much memory or time: values nest 1000 deep, a million
// values wait on the stack, memo indices are below the pickle's length.
#pragma once

#include "pickle/document.h"
#include "pickle/storages.h"

namespace zerocopy {

// Throws FormatError (the bytes contradict the format), RefusedError (an opcode or a target that is
// refused by policy) or UnsupportedError (legal, and never written by torch.save).
Document read_pickle(Region pickle, PersistentId ids = PersistentId::storage);

}  // namespace zerocopy
