#include "container/checksum.h"

#include <libdeflate.h>

namespace zerocopy {

std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) {
  // Of no data at all it returns what a CRC begins with.
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

}  // namespace zerocopy
