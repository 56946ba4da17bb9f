// A named piece of a file: what every container format is turned into.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "memory/region.h"

namespace zerocopy {

// Bytes that lie in the file in a form of the container's own, which its own library reads.
class Foreign {
 public:
  explicit Foreign(std::string why) : why_(std::move(why)) {}
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
  virtual ~Foreign() = default;

  // Why they cannot be had as they are.
  const char* why() const noexcept { return why_.c_str(); }

  // In fresh memory.
  virtual Region read() const = 0;

 private:
  std::string why_;
};

enum class Encoding : std::uint8_t { stored, deflated, foreign };

struct Record {
  std::string_view name;  // without the root folder; lives as long as its container
  Extent extent;          // the bytes as they are in the file
  Encoding encoding = Encoding::stored;
  std::uint64_t size = 0;            // after inflating; equal to extent.size when stored
  const Foreign* foreign = nullptr;  // of that encoding; lives as long as its container
  // The earlier record of the same list that is the same storage, read with another dtype.
  std::optional<std::size_t> same_as = std::nullopt;
};

}  // namespace zerocopy
