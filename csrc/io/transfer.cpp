#include "io/transfer.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/signals.h"

namespace zerocopy {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

std::vector<Piece> requests_of(std::span<const Piece> pieces) {
  std::vector<Piece> requests;
  for (Piece rest : pieces) {
    while (rest.extent.size > 0) {
      const std::uint64_t size = std::min(kRequest - rest.extent.offset % kRequest, rest.extent.size);
      requests.push_back({{rest.extent.offset, size}, rest.to});
      rest = {{rest.extent.offset + size, rest.extent.size - size}, rest.to + size};
    }
  }
  return requests;
}

class Work {
 public:
  Work(std::vector<Piece> requests, const TransferFunction& move)
      : requests_(std::move(requests)), move_(move) {}

  std::size_t count() const noexcept { return requests_.size(); }

  // Carries out the next request. Returns false if none is left, or after a stop.
  bool step() {
    if (stopped_.load(std::memory_order_relaxed)) return false;
    const std::size_t mine = next_.fetch_add(1, std::memory_order_relaxed);
    if (mine >= requests_.size()) return false;
    move_(requests_[mine]);
    done_.fetch_add(requests_[mine].extent.size, std::memory_order_relaxed);
    return true;
  }

  // The body of each thread.
  void run() noexcept {
    std::exception_ptr fault;
    try {
      while (step()) {
      }
    } catch (...) {
      fault = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    if (fault) stop();
    if (!fault_) fault_ = std::move(fault);
    --running_;
    idle_.notify_all();
  }

  // Adjusts the number of running threads, before a start and after a failed start.
  void expect(int threads) {
    const std::lock_guard lock(mutex_);
    running_ += threads;
  }

  // Returns true when the last thread has finished, and false after a short wait.
  bool wait() {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, kBetweenLooks, [this] { return running_ == 0; });
  }

  void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }
  std::uint64_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

  // Call this after all threads are joined.
  void rethrow() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  std::vector<Piece> requests_;
  const TransferFunction& move_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
  std::exception_ptr fault_;
};

// Joins the threads on every path. On an exception it first tells them to stop.
class Threads {
 public:
  explicit Threads(Work& work) : work_(work) {}
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    if (!joined_) work_.stop();
    join();
  }

  // Starts up to `count` threads, as many as the system allows.
  void start(std::size_t count) {
    const SignalsBlocked blocked;
    threads_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      work_.expect(1);
      try {
        threads_.emplace_back([&work = work_] { work.run(); });
      } catch (const std::system_error&) {
        work_.expect(-1);
        return;
      }
    }
  }

  bool empty() const noexcept { return threads_.empty(); }

  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    joined_ = true;
  }

 private:
  Work& work_;
  std::vector<std::thread> threads_;
  bool joined_ = false;
};

}  // namespace

unsigned processors() {
  cpu_set_t ours{};
  if (::sched_getaffinity(0, sizeof ours, &ours) != 0)
    return std::max(std::thread::hardware_concurrency(), 1U);
  return static_cast<unsigned>(CPU_COUNT(&ours));
}

void transfer(std::span<const Piece> pieces, const TransferFunction& move, const TransferOptions& options) {
  std::uint64_t whole = 0;
  for (const Piece& piece : pieces) whole += piece.extent.size;
  Work work(requests_of(pieces), move);
  const auto look = [&] {
    if (options.on_progress) options.on_progress(work.done());
  };
  Threads threads(work);
  if (whole > kRequest && options.threads > 1)
    threads.start(std::min<std::size_t>(options.threads, work.count()));
  if (threads.empty()) {
    while (work.step()) {
      if (work.count() > 1) look();
    }
    return;
  }
  while (!work.wait()) look();
  threads.join();
  work.rethrow();
  look();
}

}  // namespace zerocopy
