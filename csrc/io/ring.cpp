#include "io/ring.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "io/signals.h"

namespace zerocopy {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

// Groups small reads up to this size into one request, since each request takes a lock.
constexpr std::uint64_t kTogether = std::uint64_t{256} << 10U;

// Fewer bytes than this are not worth starting threads.
constexpr std::uint64_t kWorthThreads = std::uint64_t{2} << 20U;

}  // namespace

Filling::Filling(std::span<const Chunk> chunks, Terms terms)
    : terms_(std::move(terms)), left_(chunks.size()) {
  std::uint64_t whole = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const Fill> fills = chunks[i].fills;
    for (std::size_t first = 0; first < fills.size();) {
      std::uint64_t size = fills[first].extent.size;
      std::size_t end = first + 1;
      while (end < fills.size() && size + fills[end].extent.size <= kTogether)
        size += fills[end++].extent.size;
      requests_.push_back({i, fills.subspan(first, end - first)});
      ++left_[i];
      whole += size;
      first = end;
    }
  }
  slots_.reserve(chunks.size());
  if (terms_.threads > 1 && requests_.size() > 1 && whole >= kWorthThreads) start();
}

void Filling::start() {
  const SignalsBlocked blocked;
  const unsigned threads = are_at_hand() ? std::min(terms_.threads, processors()) : terms_.threads;
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
bool Filling::are_at_hand() const {
  const auto is_at_hand = [](const Request& request) {
    const Fill& fill = request.fills.front();
    return fill.source->is_at_hand(fill.extent);
  };
  return is_at_hand(requests_.front()) && is_at_hand(requests_[requests_.size() / 2]) &&
         is_at_hand(requests_.back());
}

// The body of each thread.
void Filling::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopped_ || next_ == requests_.size() || is_ready(); });
    if (!step(lock)) return;
  }
}

// Carries out the next request. Returns false if none is ready, or after stop().
bool Filling::step(std::unique_lock<std::mutex>& lock) {
  if (stopped_ || !is_ready()) return false;
  const Request& mine = requests_[next_++];
  std::byte* const slot = slots_[mine.chunk];
  if (next_ == requests_.size()) work_.notify_all();
  lock.unlock();
  std::exception_ptr fault;
  std::uint64_t size = 0;
  try {
    for (const Fill& fill : mine.fills) {
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

void Filling::lend(std::byte* slot) {
  {
    const std::lock_guard lock(mutex_);
    slots_.push_back(slot);
  }
  work_.notify_all();
}

void Filling::wait(std::size_t chunk) {
  std::unique_lock lock(mutex_);
  while (left_.at(chunk) > 0 && !fault_) {
    if (threads_.empty()) {
      if (!step(lock) && !fault_) throw std::logic_error("wait() was called for a chunk without a slot");
    } else {
      filled_.wait_for(lock, kBetweenLooks);
    }
    const std::uint64_t done = done_;
    lock.unlock();
    if (terms_.meanwhile) terms_.meanwhile(done);
    lock.lock();
  }
  if (fault_) std::rethrow_exception(fault_);
}

void Filling::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace zerocopy
