#include "container/checksum.h"

#include <libdeflate.h>

namespace zerocopy {

std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes) {
  // libdeflate returns the initial CRC for null data, whatever `crc` is.
  return bytes.empty() ? crc : libdeflate_crc32(crc, bytes.data(), bytes.size());
}

}  // namespace zerocopy
