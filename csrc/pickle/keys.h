// Checks dict keys and set members.
//
// Every value that can be hashed is allowed, if it is small. Hashing a tuple visits each of its
// leaves. A tuple doubled 40 times through the memo takes 80 bytes of pickle and
// 2^40 steps. So leaves are counted with repetition, and their number is bounded.
#pragma once

#include "pickle/document.h"

namespace zerocopy {

// Throws FormatError: unhashable, too large a tuple, or used too often.
void check_key(Document& document, const Value& key, std::uint64_t offset);

}  // namespace zerocopy
