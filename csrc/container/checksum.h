// CRC-32 as in zip (ISO 3309), by libdeflate. No other file uses libdeflate.
//
// zlib takes a second per gigabyte, longer than the disk takes to write it. libdeflate uses
// carry-less multiplication and is limited by memory.
#pragma once

#include "memory/bytes.h"

namespace zerocopy {

// Continues `crc` with `bytes`.
std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes);

}  // namespace zerocopy
