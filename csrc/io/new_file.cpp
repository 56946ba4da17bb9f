#include "io/new_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace zerocopy {
namespace {

// Converts bytes for writev, which does not modify them.
iovec part_of(ByteSpan bytes) noexcept {
  // NOLINTNEXTLINE(*-const-cast): iovec serves reads and writes
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

ByteSpan behind(ByteSpan bytes, std::size_t size) noexcept {
  return {bytes.data() + size, bytes.size() - size};
}

// Returns whether another method may succeed: the kernel, the file system or the pair of files does
// not support this one.
bool is_refused(int error) noexcept {
  return error == EXDEV || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

void wait_for(int descriptor) noexcept {
  pollfd asked{.fd = descriptor, .events = POLLIN, .revents = 0};
  while (::poll(&asked, 1, -1) < 0 && errno == EINTR) {
  }
}

// Errors are ignored: the data are on disk and the name is set, so nothing is to be undone.
void sync_folder(const char* folder) noexcept {
  const int descriptor = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

// Locks the file, so other processes know that it does not belong to a killed process.
void lock(int descriptor) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ::fcntl(descriptor, F_OFD_SETLK, &whole);
}

int give_name(int descriptor, const char* name) noexcept {
  lock(descriptor);
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", descriptor);
  return ::linkat(AT_FDCWD, path.data(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

// Copies the partial blocks at both ends of a shared extent.
int copy_small(int target, std::uint64_t at, int source, Extent extent) noexcept {
  std::array<std::byte, 4096> buffer;  // NOLINT(*-member-init): filled before it is read
  while (extent.size > 0) {
    const std::size_t wanted = std::min<std::uint64_t>(extent.size, buffer.size());
    std::size_t got = 0;
    if (const int error = read_part(source, extent.offset, {buffer.data(), wanted}, got)) return error;
    if (got < wanted) return ESTALE;
    for (std::size_t done = 0; done < got;) {
      const ssize_t size = ::pwrite(target, buffer.data() + done, got - done, static_cast<off_t>(at + done));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return size < 0 ? errno : ENOSPC;
      done += static_cast<std::size_t>(size);
    }
    at += got;
    extent = {extent.offset + got, extent.size - got};
  }
  return 0;
}

}  // namespace

int NewFile::append(ByteSpan first, ByteSpan second) noexcept {
  while (!first.empty() || !second.empty()) {
    std::array<iovec, 2> parts{part_of(first), part_of(second)};
    const ssize_t size = ::writev(descriptor_, parts.data(), static_cast<int>(parts.size()));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return size < 0 ? errno : ENOSPC;
    const auto done = static_cast<std::size_t>(size);
    const std::size_t of_first = std::min(done, first.size());
    first = behind(first, of_first);
    second = behind(second, done - of_first);
    advance(done);
  }
  return 0;
}

int NewFile::skip(std::uint64_t size) noexcept {
  if (::lseek(descriptor_, static_cast<off_t>(size), SEEK_CUR) < 0) return errno;
  position_ += size;
  return 0;
}

int NewFile::share(int source, Extent extent, bool& shared) noexcept {
  shared = false;
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return errno;
  const auto block = static_cast<std::uint64_t>(status.st_blksize);
  const std::uint64_t head = (block - extent.offset % block) % block;
  if (extent.size <= head || extent.offset % block != position_ % block) return 0;
  const std::uint64_t body = (extent.size - head) / block * block;
  if (body == 0) return 0;
  file_clone_range request{.src_fd = source,
                           .src_offset = extent.offset + head,
                           .src_length = body,
                           .dest_offset = position_ + head};
  if (::ioctl(descriptor_, FICLONERANGE, &request) != 0)
    return 0;  // the caller copies the bytes, which reports real errors
  if (const int error = copy_small(descriptor_, position_, source, {extent.offset, head})) return error;
  const std::uint64_t end = head + body;
  if (const int error =
          copy_small(descriptor_, position_ + end, source, {extent.offset + end, extent.size - end})) {
    return error;
  }
  shared = true;
  return skip(extent.size);
}

int NewFile::copy(int source, Extent extent, std::span<std::byte> buffer) noexcept {
  while (extent.size > 0) {
    std::uint64_t done = 0;
    const bool in_kernel = copies_ranges_ || sends_;
    const int error =
        in_kernel ? copy_in_kernel(source, extent, done) : copy_through(source, extent, buffer, done);
    if (error != 0) return error;
    extent = {extent.offset + done, extent.size - done};
  }
  return 0;
}

// Returns 0 without progress if the caller should retry or use another method.
int NewFile::copy_in_kernel(int source, Extent extent, std::uint64_t& done) noexcept {
  auto offset = static_cast<off_t>(extent.offset);
  const ssize_t size = copies_ranges_
                           ? ::copy_file_range(source, &offset, descriptor_, nullptr, extent.size, 0)
                           : ::sendfile(descriptor_, source, &offset, extent.size);
  if (size > 0) {
    done = static_cast<std::uint64_t>(size);
    advance(done);
    return 0;
  }
  if (size == 0) return ESTALE;
  if (errno == EINTR) return 0;
  if (!is_refused(errno)) return errno;
  (copies_ranges_ ? copies_ranges_ : sends_) = false;
  return 0;
}

int NewFile::copy_through(int source, Extent extent, std::span<std::byte> buffer,
                          std::uint64_t& done) noexcept {
  std::size_t got = 0;
  const std::size_t wanted = std::min<std::uint64_t>(extent.size, buffer.size());
  if (const int error = read_part(source, extent.offset, buffer.first(wanted), got)) return error;
  if (got < wanted) return ESTALE;
  done = got;
  return append({buffer.data(), got}, {});
}

// NOLINTNEXTLINE(readability-make-member-function-const): it ends the writing
int NewFile::finish(const FileNaming& naming) noexcept {
  if (::fsync(descriptor_) != 0) return errno;
  for (const int earlier : naming.earlier) wait_for(earlier);
  narrow_to(naming.target);
  if (!naming.is_named) {
    if (const int error = give_name(descriptor_, naming.temporary)) return error;
  }
  if (::rename(naming.temporary, naming.target) != 0) {
    const int error = errno;
    ::unlink(naming.temporary);
    return error;
  }
  sync_folder(naming.folder);
  return 0;
}

// Somebody may have taken permissions away from the target since this file was made.
// NOLINTNEXTLINE(readability-make-member-function-const): it changes the file
void NewFile::narrow_to(const char* target) noexcept {
  struct stat old {};
  struct stat fresh {};
  if (::stat(target, &old) != 0 || ::fstat(descriptor_, &fresh) != 0) return;
  if ((fresh.st_mode & ~old.st_mode & 0777U) != 0) {
    ::fchmod(descriptor_, fresh.st_mode & old.st_mode & 07777U);
  }
}

void NewFile::advance(std::uint64_t size) noexcept {
  // Starts the disk write now. Otherwise the disk would idle until the fsync.
  ::sync_file_range(descriptor_, static_cast<off_t>(position_), static_cast<off_t>(size),
                    SYNC_FILE_RANGE_WRITE);
  position_ += size;
}

int read_part(int source, std::uint64_t offset, std::span<std::byte> into, std::size_t& size) noexcept {
  size = 0;
  while (size < into.size()) {
    const ssize_t got =
        ::pread(source, into.data() + size, into.size() - size, static_cast<off_t>(offset + size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  return 0;
}

void forget(const FileNaming& naming) noexcept {
  if (naming.is_named) ::unlink(naming.temporary);
}

}  // namespace zerocopy
