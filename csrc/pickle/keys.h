// What may be a dict key or a set member.
//
// Texts, bytes, numbers, bool, None, dtypes, and small tuples of those. A tuple is hashed by
// visiting every leaf each time: one doubled 40 times from the memo is 80 bytes of pickle and 2^40
// steps. So a key's leaves are counted with repetition, and few are allowed.
#pragma once

#include "pickle/document.h"

namespace zerocopy {

// Throws FormatError (unhashable, too big a tuple, or one that is used too often) or UnsupportedError
// (hashable otherwise).
void check_key(Document& document, const Value& key, std::uint64_t offset);

}  // namespace zerocopy
