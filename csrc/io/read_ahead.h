// Reads a mapped file into memory by many requests at once. Page faults would read it one request
// at a time.
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

// Mapped bytes and their offset in the file. `file` is empty if the file cannot be opened any more.
// `name` is for errors.
struct MappedPart {
  Region region;
  std::uint64_t offset;
  std::optional<File> file;
  std::string name;
};

// Reads the pages of mapped bytes into memory. `offset` is their offset in the file. Throws
// FileError for pages that cannot be read.
void read_ahead(const File& file, std::uint64_t offset, const Region& mapped, const TransferOptions& options);

// Reads several parts in order, on its own threads, while the program continues. The object lives
// until the reading has ended and no caller holds it. Process exit does not wait for it.
class ReadAhead {
 public:
  // Starts `threads` threads that read, and one more that waits for them. If the system allows no
  // thread, the calling thread reads.
  static std::shared_ptr<ReadAhead> start(std::vector<MappedPart> parts, unsigned threads);

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

  // Starts no further request. Pages that were read stay in memory.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  // Returns true if the reading has ended (done, cancelled or failed), and false after the timeout.
  bool wait_for(std::chrono::milliseconds time) const;

  // Throws the error that ended the reading. Call this only after the end.
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
