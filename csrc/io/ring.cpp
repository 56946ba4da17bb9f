#include "io/ring.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "io/signals.h"

namespace zerocopy {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

// Groups small reads up to this size into one request, since each request takes a lock.
constexpr std::uint64_t kMaxGroupedRead = std::uint64_t{256} << 10U;

// Fewer bytes than this are not worth starting threads.
constexpr std::uint64_t kMinThreadedBytes = std::uint64_t{2} << 20U;

}  // namespace

SlotReader::SlotReader(std::span<const Chunk> chunks, TransferOptions options)
    : options_(std::move(options)), left_(chunks.size()) {
  std::uint64_t whole = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const SlotRead> reads = chunks[i].reads;
    for (std::size_t first = 0; first < reads.size();) {
      std::uint64_t size = reads[first].extent.size;
      std::size_t end = first + 1;
      while (end < reads.size() && size + reads[end].extent.size <= kMaxGroupedRead)
        size += reads[end++].extent.size;
      requests_.push_back({i, reads.subspan(first, end - first)});
      ++left_[i];
      whole += size;
      first = end;
    }
  }
  slots_.reserve(chunks.size());
  if (options_.threads > 1 && requests_.size() > 1 && whole >= kMinThreadedBytes) start();
}

void SlotReader::start() {
  const SignalsBlocked blocked;
  const unsigned threads = are_cached() ? std::min(options_.threads, processors()) : options_.threads;
  const std::size_t count = std::min<std::size_t>(threads, requests_.size());
  threads_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      return;  // without any thread, the caller reads
    }
  }
}

// Checks the first, the middle and the last request.
bool SlotReader::are_cached() const {
  const auto is_cached = [](const Request& request) {
    const SlotRead& fill = request.reads.front();
    return fill.source->is_cached(fill.extent);
  };
  return is_cached(requests_.front()) && is_cached(requests_[requests_.size() / 2]) &&
         is_cached(requests_.back());
}

// The body of each thread.
void SlotReader::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopped_ || next_ == requests_.size() || is_ready(); });
    if (!step(lock)) return;
  }
}

// Carries out the next request. Returns false if none is ready, or after stop().
bool SlotReader::step(std::unique_lock<std::mutex>& lock) {
  if (stopped_ || !is_ready()) return false;
  const Request& mine = requests_[next_++];
  std::byte* const slot = slots_[mine.chunk];
  if (next_ == requests_.size()) work_.notify_all();
  lock.unlock();
  std::exception_ptr fault;
  std::uint64_t size = 0;
  try {
    for (const SlotRead& fill : mine.reads) {
      fill.source->read_once(fill.extent.offset,
                             {slot + fill.at, static_cast<std::size_t>(fill.extent.size)});
      size += fill.extent.size;
    }
  } catch (...) {
    fault = std::current_exception();
  }
  lock.lock();
  done_ += size;
  if (fault) {
    if (!fault_) fault_ = std::move(fault);
    stopped_ = true;
    work_.notify_all();
  } else if (--left_[mine.chunk] > 0) {
    return true;
  }
  filled_.notify_all();
  return true;
}

void SlotReader::lend(std::byte* slot) {
  {
    const std::lock_guard lock(mutex_);
    slots_.push_back(slot);
  }
  work_.notify_all();
}

void SlotReader::wait(std::size_t chunk) {
  std::unique_lock lock(mutex_);
  while (left_.at(chunk) > 0 && !fault_) {
    if (threads_.empty()) {
      if (!step(lock) && !fault_) throw std::logic_error("wait() was called for a chunk without a slot");
    } else {
      filled_.wait_for(lock, kBetweenLooks);
    }
    const std::uint64_t done = done_;
    lock.unlock();
    if (options_.on_progress) options_.on_progress(done);
    lock.lock();
  }
  if (fault_) std::rethrow_exception(fault_);
}

void SlotReader::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace zerocopy
