#include "io/read_ahead.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "io/signals.h"

namespace zerocopy {
namespace {

struct Cancelled {};

// Calls `unfilled` with the extents of the file that the kernel did not populate.
template <typename Unfilled>
void fill_pages(std::uint64_t offset, const Region& mapped, const TransferOptions& options,
                Unfilled unfilled) {
  const Piece whole{{offset, mapped.size()}, mapped.data()};
  const auto move = [&](const Piece& request) {
    if (!populate({request.to, static_cast<std::size_t>(request.extent.size)})) unfilled(request.extent);
  };
  transfer(std::span(&whole, 1), move, options);
}

}  // namespace

void read_ahead(const File& file, std::uint64_t offset, const Region& mapped,
                const TransferOptions& options) {
  // The kernel may be unable to populate the mapping, or hide the error.
  fill_pages(offset, mapped, options, [&](Extent extent) { file.read_through(extent); });
}

ReadAhead::ReadAhead(std::vector<MappedPart> parts, unsigned threads)
    : parts_(std::move(parts)), threads_(threads) {
  for (const MappedPart& part : parts_) size_ += part.region.size();
}

std::shared_ptr<ReadAhead> ReadAhead::start(std::vector<MappedPart> parts, unsigned threads) {
  std::shared_ptr<ReadAhead> made(new ReadAhead(std::move(parts), threads));
  try {
    const SignalsBlocked blocked;
    // Detached, so process exit does not wait for it. The thread uses only objects that it owns.
    std::thread([made] { made->run(); }).detach();
  } catch (const std::system_error&) {
    made->run();
  }
  return made;
}

void ReadAhead::run() noexcept {
  std::exception_ptr fault;
  try {
    read_parts();
  } catch (const Cancelled&) {  // NOLINT(bugprone-empty-catch): a cancelled reading has no error
  } catch (...) {
    fault = std::current_exception();
  }
  parts_.clear();
  const std::lock_guard lock(mutex_);
  fault_ = std::move(fault);
  is_over_ = true;
  over_.notify_all();
}

void ReadAhead::read_parts() {
  std::uint64_t before = 0;
  const auto look = [&](std::uint64_t done) {
    done_.store(before + done, std::memory_order_relaxed);
    if (cancelled()) throw Cancelled();
  };
  const TransferOptions options{.threads = threads_, .on_progress = look};
  for (const MappedPart& part : parts_) {
    look(0);
    fill_pages(part.offset, part.region, options, [&](Extent extent) {
      if (!part.file) throw FileError(EIO, part.name);
      part.file->read_through(extent);
    });
    before += part.region.size();
    done_.store(before, std::memory_order_relaxed);
  }
}

bool ReadAhead::wait_for(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  return over_.wait_for(lock, time, [this] { return is_over_; });
}

void ReadAhead::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (fault_) std::rethrow_exception(fault_);
}

}  // namespace zerocopy
