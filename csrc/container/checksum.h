// CRC-32 as zip has it (ISO 3309), by libdeflate: the only place that knows it.
//
// zlib's own takes a second for a gigabyte, longer than the disk takes to write it; libdeflate multiplies
// without carries where the processor can, and waits for memory.
#pragma once

#include "memory/bytes.h"

namespace zerocopy {

// Of what gave `crc`, and of `bytes` behind it.
std::uint32_t crc32(std::uint32_t crc, ByteSpan bytes);

}  // namespace zerocopy
