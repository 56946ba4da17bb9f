// A few slots of memory through which many chunks pass: threads fill, the caller empties.
//
//   chunks     0   1   2   3   4   5   6 ...
//   lend()     a   b   c   a   b   c             a slot is lent to the next chunk that has none
//   wait()     ^ filled: copied away by the caller, who lends the slot again when the copy is done
//
// Fills are taken in order by whichever thread is idle, of several chunks at a time. The first fault wins, as
// in a transfer: wait() throws it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "io/staging.h"

namespace zerocopy {

class Filling {
 public:
  // The chunks have to outlive this.
  Filling(std::span<const Chunk> chunks, Terms terms);
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  ~Filling() { stop(); }

  // The slot, which begins at kSlotBorder, is written to until wait() has returned for its chunk, or stop().
  void lend(std::byte* slot);

  // Returns when that chunk, which was lent a slot, is filled.
  void wait(std::size_t chunk);

  // Begins nothing more, and returns when nobody writes to a slot any more.
  void stop() noexcept;

 private:
  // Fills that one thread does one after the other: small ones come together.
  struct Request {
    std::size_t chunk;
    std::span<const Fill> fills;
  };

  void start();
  bool are_at_hand() const;
  void run() noexcept;
  bool step(std::unique_lock<std::mutex>& lock);
  bool is_ready() const { return next_ < requests_.size() && requests_[next_].chunk < slots_.size(); }

  Terms terms_;
  std::vector<Request> requests_;
  std::vector<std::size_t> left_;  // requests of each chunk that are not done
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable work_;    // there is a slot, or an end
  std::condition_variable filled_;  // a chunk is, or there is a fault
  std::vector<std::byte*> slots_;   // by chunk
  std::size_t next_ = 0;
  std::uint64_t done_ = 0;
  bool stopped_ = false;
  std::exception_ptr fault_;
};

}  // namespace zerocopy
