#include "io/direct.h"

#include <algorithm>
#include <cerrno>

#include "io/residency.h"
#include "memory/pages.h"

namespace zerocopy {
namespace {

// Some file systems let a file be opened with O_DIRECT and refuse to read it so.
bool reads_directly(const File& file) {
  if (!file.is_direct()) return false;
  const Region block = allocate_pages(kDirectBlock, 0);
  try {
    file.read_some(0, {block.data(), block.size()});
    return true;
  } catch (const FileError& error) {
    if (error.code().value() != EINVAL) throw;
    return false;
  }
}

// Less is not worth a request of its own to the disk: the kernel reads on around it.
constexpr std::size_t kWorthPassing = std::size_t{256} << 10U;

std::uint64_t lead_to_block(std::uint64_t offset) {
  return (kDirectBlock - offset % kDirectBlock) % kDirectBlock;
}

}  // namespace

DirectSource::DirectSource(File file, std::uint64_t start, Terms terms)
    : Source(std::move(terms)),
      file_(std::move(file)),
      past_cache_(File::reopen_direct(file_)),
      start_(start),
      direct_(reads_directly(past_cache_)) {
  if (start_ > file_.size()) throw FormatError("file ends before " + hex(start_));
}

void DirectSource::fill(std::uint64_t offset, std::span<std::byte> into) const {
  offset += start_;
  // NOLINTNEXTLINE(*-reinterpret-cast): an address, to see where its page begins
  const bool alike = (reinterpret_cast<std::uintptr_t>(into.data()) - offset) % kDirectBlock == 0;
  const std::uint64_t head = lead_to_block(offset);
  if (!is_direct() || !alike || into.size() < head + kDirectBlock) return file_.read(offset, into);
  file_.read(offset, into.first(head));
  into = into.subspan(head);
  const std::uint64_t got =
      fill_directly(offset + head, into.first(into.size() / kDirectBlock * kDirectBlock));
  file_.read(offset + head + got, into.subspan(got));
}

// How far it came; what is left is for plain reading, which also knows what to say of a file that has ended.
std::uint64_t DirectSource::fill_directly(std::uint64_t offset, std::span<std::byte> into) const {
  std::uint64_t done = 0;
  try {
    while (done < into.size()) {
      const std::size_t got = past_cache_.read_some(offset + done, into.subspan(done));
      done += got;
      if (got == 0 || got % kDirectBlock != 0) break;
    }
  } catch (const FileError& error) {
    // EFAULT: not into that memory. Of page-locked memory it is the driver's affair what its pages are.
    if (const int why = error.code().value(); why != EINVAL && why != EFAULT) throw;
    direct_.store(false, std::memory_order_relaxed);  // it took the first block and does not take this one
  }
  return done;
}

bool SparingSource::is_at_hand(Extent extent) const {
  return is_cached(file(), {start() + extent.offset, extent.size});
}

void SparingSource::fill_once(std::uint64_t offset, std::span<std::byte> into) const {
  if (into.size() < kWorthPassing || is_at_hand({offset, into.size()})) {
    return fill(offset, into);
  }
  const Source& direct = past_cache();
  if (direct.size() != size()) require_unchanged();  // it was opened later
  direct.read(offset, into);
}

const Source& SparingSource::past_cache() const {
  std::call_once(opening_, [this] {
    past_cache_ = std::make_unique<const DirectSource>(File::duplicate(file().descriptor(), file().path()),
                                                       start(), Terms{});
  });
  return *past_cache_;
}

}  // namespace zerocopy
