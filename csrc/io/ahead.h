// A mapped file, brought into memory by many requests at once before it is touched: page by page each touch
// would wait for a request of its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "io/mapping.h"
#include "io/transfer.h"

namespace zerocopy {

// Mapped bytes, and where they are in their file: the file if it can still be opened, else what it was
// called.
struct MappedPart {
  Region region;
  std::uint64_t offset;
  std::optional<File> file;
  std::string name;
};

// Reads the pages of mapped bytes, from `offset` on in the file; who touches them then finds them. Throws
// FileError for what cannot be read.
void read_ahead(const File& file, std::uint64_t offset, const Region& mapped, const Terms& terms);

// Several parts one behind the other, on threads of its own while the program goes on. Lives as long as it is
// at work or somebody holds it; a process that ends does not wait for it.
class ReadAhead {
 public:
  // `threads` read; one more waits for them.
  static std::shared_ptr<ReadAhead> start(std::vector<MappedPart> parts, unsigned threads);

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

  // No request is begun any more. The bytes that came stay in memory.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  // True when it is over: done, cancelled or failed; false if that did not happen in that time.
  bool wait_for(std::chrono::milliseconds time) const;

  // Once it is over: throws what went wrong.
  void rethrow() const;

 private:
  ReadAhead(std::vector<MappedPart> parts, unsigned threads);
  void run() noexcept;
  void read_parts();

  std::vector<MappedPart> parts_;
  unsigned threads_;
  std::uint64_t size_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable over_;
  bool is_over_ = false;
  std::exception_ptr fault_;
};

}  // namespace zerocopy
