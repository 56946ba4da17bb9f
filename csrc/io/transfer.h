// Many bytes at once: a list of pieces, done by several threads.
//
//   pieces    [ 9 MiB        ][1][ 6 MiB    ]     bytes of a file, and where in memory they belong
//   requests  [ 4 ][ 4 ][ 1 ][1][ 4    ][ 2 ]     cut where the file's offset is a multiple of 4 MiB
//   threads     1    2    1   2    1     2        each takes the next that nobody has
//
// The first fault wins: what is under way is finished, nothing more is begun, every thread is joined, and the
// fault is thrown to the caller. A stop that the caller wishes for (a signal) goes the same way. What a
// request is, a pread, one past the page cache, pages of a mapping, is the caller's: a Move.
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

// Does one request. Runs on any thread, on several at once; what it throws ends the transfer.
using Move = std::function<void(const Piece& request)>;

// How a transfer is done, which is its caller's business.
struct Terms {
  unsigned threads = 1;  // at most; the caller's own only waits
  // Called on the caller's thread every now and then, with the bytes that are done: what it throws ends the
  // transfer.
  std::function<void(std::uint64_t done)> meanwhile;
};

// A large request serves network file systems and disks alike; more of them are in flight at the same time
// instead.
constexpr std::uint64_t kRequest = std::uint64_t{4} << 20U;

// How many threads may copy memory at once without waiting for each other; a disk takes more requests than
// that.
unsigned processors();

// Returns when all is done, or throws what a Move or `meanwhile` threw. Small transfers start no thread.
void transfer(std::span<const Piece> pieces, const Move& move, const Terms& terms);

}  // namespace zerocopy
