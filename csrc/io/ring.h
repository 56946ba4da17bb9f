// Reads many chunks through a few slots of memory. Threads fill the slots, and the caller empties
// them.
//
//   chunks     0   1   2   3   4   5   6 ...
//   lend()     a   b   c   a   b   c             lends a slot to the next chunk without one
//   wait()     ^ filled: the caller copies it, and lends the slot again after the copy
//
// Idle threads take requests in order, from several chunks at a time. The first error wins, as in
// transfer(): wait() throws it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "io/staging.h"

namespace zerocopy {

class SlotReader {
 public:
  // The chunks must outlive this object.
  SlotReader(std::span<const Chunk> chunks, TransferOptions options);
  SlotReader(const SlotReader&) = delete;
  SlotReader& operator=(const SlotReader&) = delete;
  ~SlotReader() { stop(); }

  // Lends a slot, aligned to kSlotAlignment. Threads write to it until wait() returns for its
  // chunk, or until stop().
  void lend(std::byte* slot);

  // Waits until the chunk, which must have a slot, is filled.
  void wait(std::size_t chunk);

  // Starts no further request, and returns when no thread writes to a slot any more.
  void stop() noexcept;

 private:
  // Reads that one thread makes in sequence. Small reads are grouped.
  struct Request {
    std::size_t chunk;
    std::span<const SlotRead> reads;
  };

  void start();
  bool are_cached() const;
  void run() noexcept;
  bool step(std::unique_lock<std::mutex>& lock);
  bool is_ready() const { return next_ < requests_.size() && requests_[next_].chunk < slots_.size(); }

  TransferOptions options_;
  std::vector<Request> requests_;
  std::vector<std::size_t> left_;  // unfinished requests of each chunk
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable work_;    // signals a new slot, or stop()
  std::condition_variable filled_;  // signals a filled chunk, or an error
  std::vector<std::byte*> slots_;   // by chunk
  std::size_t next_ = 0;
  std::uint64_t done_ = 0;
  bool stopped_ = false;
  std::exception_ptr fault_;
};

}  // namespace zerocopy
