// Validates UTF-8 (RFC 3629), optionally with the lone surrogates that Python's pickle writes
// ("surrogatepass").
#pragma once

#include "memory/bytes.h"

namespace zerocopy {

enum class Surrogates : bool { refuse, accept };

bool is_utf8(ByteSpan text, Surrogates surrogates);

}  // namespace zerocopy
