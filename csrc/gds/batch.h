// Many reads under way at once, by cuFileBatchIO*: requests of 16 MiB at most, as many as the driver takes.
#pragma once

#include <span>
#include <vector>

#include "gds/registered_file.h"

namespace zerocopy {

class Batch {
 public:
  static constexpr std::uint64_t kRequest = std::uint64_t{16} << 20U;

  // Gives up where nothing comes to an end for `patience` seconds.
  Batch(const RegisteredFile& file, unsigned patience) : file_(file), patience_(patience) {}

  // Whether there is more than one request in them.
  static bool is_worth(std::span<const RegisteredFile::Piece> pieces) noexcept {
    return pieces.size() > 1 || (pieces.size() == 1 && pieces.front().memory.size > kRequest);
  }

  // Pieces of whole blocks that lie alike. What a batch brings only in part, or the library does not take in
  // one, is read by itself.
  void read(std::span<const RegisteredFile::Piece> pieces);

 private:
  struct Part {
    RegisteredFile::Piece piece;
    bool complete = false;
  };
  class Queue;

  bool read_window(std::span<Part> parts);

  const RegisteredFile& file_;
  unsigned patience_;
};

}  // namespace zerocopy
