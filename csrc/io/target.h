// The target of an archive, to which bytes are appended: a new file, or a Python stream.
#pragma once

#include <span>

#include "memory/bytes.h"

namespace zerocopy {

// Each function returns 0 or an errno.
class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  virtual int append(std::span<const ByteSpan> parts) noexcept = 0;

  // Appends zeros.
  virtual int skip(std::uint64_t size) noexcept = 0;

  // Appends a part of an open file by sharing its blocks. If that is impossible, sets `shared` to
  // false and appends nothing.
  virtual int share(int source, Extent extent, bool& shared) noexcept = 0;

  // Appends as much of a part of an open file as the kernel can copy by itself, and counts it.
  // Returns ESTALE if that file was cut.
  virtual int copy(int source, Extent extent, std::uint64_t& done) noexcept = 0;
};

// Fills `into` from a file. Returns ESTALE if the file ends before.
int read_part(int source, std::uint64_t offset, std::span<std::byte> into) noexcept;

}  // namespace zerocopy
