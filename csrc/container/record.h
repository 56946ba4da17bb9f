// A named range of a file. Each container format is parsed into records.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "memory/region.h"

namespace zerocopy {

// Bytes in a form that only the container's own library reads.
class ExternalBytes {
 public:
  explicit ExternalBytes(std::string why) : why_(std::move(why)) {}
  ExternalBytes(const ExternalBytes&) = delete;
  ExternalBytes& operator=(const ExternalBytes&) = delete;
  virtual ~ExternalBytes() = default;

  // Returns why the bytes cannot be mapped.
  const char* why() const noexcept { return why_.c_str(); }

  // Throws UnsupportedError if the bytes are never read.
  virtual void require_readable() const {}

  // Reads the bytes into fresh memory.
  virtual Region read() const = 0;

 private:
  std::string why_;
};

enum class Encoding : std::uint8_t { stored, deflated, external };

struct Record {
  std::string_view name;  // without the root folder; a view into the container
  Extent extent;          // the stored bytes in the file
  Encoding encoding = Encoding::stored;
  std::uint64_t size = 0;                   // after inflating; equals extent.size if stored
  const ExternalBytes* external = nullptr;  // set for that encoding; owned by the container
  // An earlier record of the list that is the same storage, read with another dtype.
  std::optional<std::size_t> same_as = std::nullopt;
};

}  // namespace zerocopy
