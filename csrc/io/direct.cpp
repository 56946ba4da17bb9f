#include "io/direct.h"

#include <algorithm>
#include <cerrno>

#include "io/residency.h"
#include "memory/pages.h"

namespace zerocopy {
namespace {

// Some file systems open a file with O_DIRECT and then refuse to read it.
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

// Smaller reads are not worth a disk request of their own: the kernel reads around them anyway.
constexpr std::size_t kMinDirectRead = std::size_t{256} << 10U;

std::uint64_t lead_to_block(std::uint64_t offset) {
  return (kDirectBlock - offset % kDirectBlock) % kDirectBlock;
}

}  // namespace

DirectSource::DirectSource(File file, std::uint64_t start, TransferOptions options)
    : Source(std::move(options)),
      file_(std::move(file)),
      past_cache_(File::reopen_direct(file_)),
      start_(start),
      direct_(reads_directly(past_cache_)) {
  if (start_ > file_.size()) throw FormatError("file ends before " + hex(start_));
}

void DirectSource::fill(std::uint64_t offset, std::span<std::byte> into) const {
  offset += start_;
  // NOLINTNEXTLINE(*-reinterpret-cast): the address's offset in its page
  const bool alike = (reinterpret_cast<std::uintptr_t>(into.data()) - offset) % kDirectBlock == 0;
  const std::uint64_t head = lead_to_block(offset);
  if (!is_direct() || !alike || into.size() < head + kDirectBlock) return file_.read(offset, into);
  file_.read(offset, into.first(head));
  into = into.subspan(head);
  const std::uint64_t got =
      fill_directly(offset + head, into.first(into.size() / kDirectBlock * kDirectBlock));
  file_.read(offset + head + got, into.subspan(got));
}

// Returns the number of bytes read. The caller reads the rest without O_DIRECT, which also reports
// the end of the file.
std::uint64_t DirectSource::fill_directly(std::uint64_t offset, std::span<std::byte> into) const {
  std::uint64_t done = 0;
  try {
    while (done < into.size()) {
      const std::size_t got = past_cache_.read_some(offset + done, into.subspan(done));
      done += got;
      if (got == 0 || got % kDirectBlock != 0) break;
    }
  } catch (const FileError& error) {
    // EFAULT: unsuitable memory, such as memory that a driver has page-locked.
    if (const int why = error.code().value(); why != EINVAL && why != EFAULT) throw;
    direct_.store(false, std::memory_order_relaxed);  // a later block was refused
  }
  return done;
}

bool CacheSparingSource::is_cached(Extent extent) const {
  return zerocopy::is_cached(file(), {start() + extent.offset, extent.size});
}

void CacheSparingSource::fill_once(std::uint64_t offset, std::span<std::byte> into) const {
  if (into.size() < kMinDirectRead || is_cached({offset, into.size()})) {
    return fill(offset, into);
  }
  const Source& direct = past_cache();
  // It was opened later, so the file may have changed.
  if (direct.size() != size()) require_unchanged();
  direct.read(offset, into);
}

const Source& CacheSparingSource::past_cache() const {
  std::call_once(opening_, [this] {
    past_cache_ = std::make_unique<const DirectSource>(File::duplicate(file().descriptor(), file().path()),
                                                       start(), TransferOptions{});
  });
  return *past_cache_;
}

}  // namespace zerocopy
