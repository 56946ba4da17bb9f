// A named range of a file. Each container format is parsed into records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "memory/region.h"

namespace zerocopy {

// A view of elements that lie behind each other. All numbers count elements.
struct StridedView {
  std::int64_t offset;
  std::span<const std::int64_t> size;
  std::span<const std::int64_t> stride;
};

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

  // Reads the elements that a strided view selects into fresh memory, contiguously. Returns nullopt if
  // only the whole record can be read.
  virtual std::optional<Region> read_view(const StridedView& /*view*/) const { return std::nullopt; }

 private:
  std::string why_;
};

enum class Encoding : std::uint8_t { stored, deflated, external };

struct Record {
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  std::string_view name;  // without the root folder; a view into the container
  Extent extent;          // the stored bytes in the file; its offset may be unknown
  Encoding encoding = Encoding::stored;
  std::uint64_t size = 0;                   // after inflating; equals extent.size if stored
  const ExternalBytes* external = nullptr;  // set for that encoding; owned by the container
  // An earlier record of the list that is the same storage, read with another dtype.
  std::optional<std::size_t> same_as = std::nullopt;
};

}  // namespace zerocopy
