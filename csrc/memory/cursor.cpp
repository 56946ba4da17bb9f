#include "memory/cursor.h"

namespace zerocopy {

void Cursor::fail(std::uint64_t size) const {
  throw TruncatedError(std::string(what_) + ": truncated at " + hex(offset_) + ": " + std::to_string(size) +
                       " bytes wanted, " + std::to_string(remaining()) + " left");
}

}  // namespace zerocopy
