// A named piece of a file: what every container format is turned into.
#pragma once

#include <string_view>

#include "memory/bytes.h"

namespace zerocopy {

enum class Encoding : std::uint8_t { stored, deflated };

struct Record {
  std::string_view name;  // without the root folder; lives as long as its container
  Extent extent;          // the bytes as they are in the file
  Encoding encoding = Encoding::stored;
  std::uint64_t size = 0;  // after inflating; equal to extent.size when stored
};

}  // namespace zerocopy
