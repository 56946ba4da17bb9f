// Many parallel reads by cuFileBatchIO*: requests of at most 16 MiB, as many as the driver accepts.
#pragma once

#include <span>
#include <vector>

#include "gds/registered_file.h"

namespace zerocopy {

class Batch {
 public:
  static constexpr std::uint64_t kRequest = std::uint64_t{16} << 20U;

  // Gives up if no request finishes for `timeout_seconds`.
  Batch(const RegisteredFile& file, unsigned timeout_seconds)
      : file_(file), timeout_seconds_(timeout_seconds) {}

  // Returns whether the pieces need more than one request.
  static bool is_worth(std::span<const RegisteredFile::Piece> pieces) noexcept {
    return pieces.size() > 1 || (pieces.size() == 1 && pieces.front().memory.size > kRequest);
  }

  // Reads pieces of whole, equally aligned blocks. Requests that the batch completes only partly,
  // or that the library rejects, are read one by one.
  void read(std::span<const RegisteredFile::Piece> pieces);

 private:
  struct Part {
    RegisteredFile::Piece piece;
    bool complete = false;
  };
  class Queue;

  bool read_window(std::span<Part> parts);

  const RegisteredFile& file_;
  unsigned timeout_seconds_;
};

}  // namespace zerocopy
