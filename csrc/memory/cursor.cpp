#include "memory/cursor.h"

namespace zerocopy {

void Cursor::fail(std::uint64_t size) const {
  throw TruncatedError(std::string(what_) + ": truncated at " + hex(offset_) + ": expected " +
                       std::to_string(size) + " bytes, found " + std::to_string(remaining()));
}

}  // namespace zerocopy
