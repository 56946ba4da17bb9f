#include "gds/batch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "gds/status.h"
#include "io/direct.h"

namespace zerocopy {
namespace {

constexpr unsigned kMaxRequests = 128;  // the default limit of cuFile

}  // namespace

// A batch of the library. The destructor cancels running requests and waits for them, since they
// write to memory that may be reused.
class Batch::Queue {
 public:
  Queue(const RegisteredFile& file, unsigned size) : file_(file), call_(file.driver().call()) {
    const abi::Status status = call_.cuFileBatchIOSetUp(&handle_, size);
    if (status.code != 0) handle_ = nullptr;
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() {
    if (handle_ == nullptr) return;
    if (under_way_ != 0) call_.cuFileBatchIOCancel(handle_);
    call_.cuFileBatchIODestroy(handle_);
  }

  // Returns whether the library accepted the requests.
  bool submit(std::span<Part> parts) {
    if (handle_ == nullptr) return false;
    requests_.clear();
    for (Part& part : parts) {
      const auto [base, offset] = file_.driver().registered_address(part.piece.memory);
      requests_.push_back({.mode = abi::kBatchMode,
                           .batch = {.base = base,
                                     .file_offset = static_cast<off_t>(part.piece.offset),
                                     .base_offset = offset,
                                     .size = part.piece.memory.size},
                           .file = file_.handle_,
                           .operation = 0,
                           .cookie = &part});
    }
    const auto count = static_cast<unsigned>(requests_.size());
    if (call_.cuFileBatchIOSubmit(handle_, count, requests_.data(), 0).code != 0) return false;
    under_way_ = count;
    return true;
  }

  unsigned under_way() const noexcept { return under_way_; }

  // Returns the requests that finished since the last call. Waits at most a second.
  std::span<const abi::Event> ended() {
    events_.resize(requests_.size());
    unsigned count = under_way_;
    timespec second{.tv_sec = 1, .tv_nsec = 0};
    const abi::Status status = call_.cuFileBatchIOGetStatus(handle_, 1, &count, events_.data(), &second);
    require_success(status, "cuFileBatchIOGetStatus", file_.path());
    count = std::min(count, under_way_);
    under_way_ -= count;
    return std::span(events_).first(count);
  }

 private:
  const RegisteredFile& file_;
  const abi::Functions& call_;
  abi::BatchHandle handle_ = nullptr;
  unsigned under_way_ = 0;
  std::vector<abi::Request> requests_;
  std::vector<abi::Event> events_;
};

void Batch::read(std::span<const RegisteredFile::Piece> pieces) {
  std::vector<Part> parts;
  for (const RegisteredFile::Piece& piece : pieces) {
    for (std::uint64_t at = 0; at < piece.memory.size; at += kRequest) {
      const std::uint64_t size = std::min(piece.memory.size - at, kRequest);
      parts.push_back({.piece = {piece.offset + at, piece.memory.from(at).first(size)}});
    }
  }
  const unsigned told = file_.driver().properties().max_batch_size;
  const unsigned window = told == 0 ? kMaxRequests : std::min(told, kMaxRequests);
  bool taken = true;
  for (std::size_t at = 0; at < parts.size(); at += window) {
    const std::span<Part> some =
        std::span(parts).subspan(at, std::min<std::size_t>(window, parts.size() - at));
    taken = taken && read_window(some);
    for (const Part& part : some) {
      if (!part.complete) file_.read(part.piece);  // this read reports the error
    }
  }
}

// Returns whether the library accepted the requests.
bool Batch::read_window(std::span<Part> parts) {
  Queue queue(file_, static_cast<unsigned>(parts.size()));
  if (!queue.submit(parts)) return false;
  auto last = std::chrono::steady_clock::now();
  while (queue.under_way() != 0) {
    const std::span<const abi::Event> ended = queue.ended();
    const auto now = std::chrono::steady_clock::now();
    if (!ended.empty()) last = now;
    if (now - last > std::chrono::seconds(timeout_seconds_)) {
      throw FileError(ETIMEDOUT, file_.path(), "cuFileBatchIOGetStatus: no request finished in time");
    }
    for (const abi::Event& event : ended) {
      auto* const part = static_cast<Part*>(event.cookie);
      if (part < parts.data() || part >= parts.data() + parts.size()) {
        throw FileError(EIO, file_.path(), "cuFileBatchIOGetStatus: returned an event of an unknown request");
      }
      part->complete = event.status == abi::kComplete && event.result == part->piece.memory.size;
    }
  }
  return true;
}

}  // namespace zerocopy
