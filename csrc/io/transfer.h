// Moves many bytes with several threads, as a list of pieces.
//
//   pieces    [ 9 MiB        ][1][ 6 MiB    ]     ranges of a file, and their destinations in memory
//   requests  [ 4 ][ 4 ][ 1 ][1][ 4    ][ 2 ]     split where the file offset is a multiple of 4 MiB
//   threads     1    2    1   2    1     2        each thread takes the next free request
//
// The first error wins: running requests finish, no further one starts, all threads are joined, and
// the caller gets the error. A stop by the caller (a signal) works alike. The caller's function
// carries out a request: by pread, by O_DIRECT, or by populating mapped pages.
#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "memory/bytes.h"

namespace zerocopy {

struct Piece {
  Extent extent;
  std::byte* to = nullptr;
};

// Carries out one request. Several threads call it concurrently. An exception ends the transfer.
using TransferFunction = std::function<void(const Piece& request)>;

// The caller's settings for a transfer.
struct TransferOptions {
  unsigned threads = 1;  // upper bound; the caller's own thread only waits
  // Called regularly on the caller's thread with the bytes done. An exception ends the transfer.
  std::function<void(std::uint64_t done)> on_progress;
};

// A request of this size suits both network file systems and disks. More throughput comes from
// parallel requests.
constexpr std::uint64_t kRequest = std::uint64_t{4} << 20U;

// The number of threads that can copy memory in parallel. Disks accept more parallel requests.
unsigned processors();

// Returns when all pieces are done. Rethrows exceptions of `move` and `on_progress`. Small
// transfers start no thread.
void transfer(std::span<const Piece> pieces, const TransferFunction& move, const TransferOptions& options);

}  // namespace zerocopy
