#include "io/new_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/limits.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/leftovers.h"

namespace zerocopy {
namespace {

constexpr const char* kAcl = "system.posix_acl_access";
constexpr std::size_t kBegunTogether = std::size_t{1} << 20U;
constexpr std::size_t kMaxParts = 64;
constexpr mode_t kPermissions = 07777;

// Returns whether the file system, or the kernel, makes no files without a name.
bool lacks_unnamed_files(int error) noexcept {
  return error == EOPNOTSUPP || error == EISDIR || error == ENOENT || error == EINVAL;
}

bool lacks_links(int error) noexcept {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

// Returns whether another method may succeed: the kernel, the file system or the pair of files does
// not support this one.
bool is_refused(int error) noexcept {
  return error == EXDEV || error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

bool is_denied(int error) noexcept { return error == EPERM || error == EACCES; }

// Errors are ignored: the data are on disk and the name is set, so nothing is to be undone.
void sync_folder(const char* folder) noexcept {
  const int descriptor = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

// Copies the partial blocks at both ends of a shared extent.
int copy_small(int target, std::uint64_t at, int source, Extent extent) noexcept {
  std::array<std::byte, 4096> buffer;  // NOLINT(*-member-init): filled before it is read
  while (extent.size > 0) {
    const std::size_t wanted = std::min<std::uint64_t>(extent.size, buffer.size());
    if (const int error = read_part(source, extent.offset, {buffer.data(), wanted})) return error;
    for (std::size_t done = 0; done < wanted;) {
      const ssize_t size =
          ::pwrite(target, buffer.data() + done, wanted - done, static_cast<off_t>(at + done));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return size < 0 ? errno : ENOSPC;
      done += static_cast<std::size_t>(size);
    }
    at += wanted;
    extent = {extent.offset + wanted, extent.size - wanted};
  }
  return 0;
}

// Returns what is left of buffers after so many bytes, without empty buffers in front.
std::span<iovec> behind(std::span<iovec> buffers, std::size_t size) noexcept {
  while (!buffers.empty() && size >= buffers.front().iov_len) {
    size -= buffers.front().iov_len;
    buffers = buffers.subspan(1);
  }
  if (!buffers.empty()) {
    buffers.front().iov_base = static_cast<char*>(buffers.front().iov_base) + size;
    buffers.front().iov_len -= size;
  }
  return buffers;
}

}  // namespace

NewFile::NewFile(std::string target, NewFileOptions options)
    : target_(std::move(target)),
      folder_(target_.substr(0, std::max<std::size_t>(target_.rfind('/'), 1))),
      like_(options.like.empty() ? target_ : std::move(options.like)),
      attributes_(new char[std::size_t{XATTR_LIST_MAX} + XATTR_SIZE_MAX]),
      is_new_(options.is_new),
      syncs_(options.syncs),
      owner_(::getpid()) {
  struct stat old {};
  mode_t mode = S_IRUSR | S_IWUSR;
  if (::stat(like_.c_str(), &old) != 0) {
    if (errno != ENOENT) throw FileError(errno, target_);
    mode = 0666;
  } else if (S_ISDIR(old.st_mode)) {
    throw FileError(EISDIR, like_);
  } else if (::faccessat(AT_FDCWD, like_.c_str(), W_OK, AT_EACCESS) != 0) {
    // The folder alone decides about names. Yet a user who makes a file read-only does not want it
    // replaced either.
    throw FileError(EACCES, like_);
  }
  delete_leftovers(target_);
  temporary_ = new_temporary(target_);
  create(mode, options.has_name);
  may_have_name_ = true;
}

void NewFile::create(mode_t mode, bool has_name) {
  if (!has_name) {
    descriptor_ = ::open(folder_.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
    if (descriptor_ >= 0) return;
    if (!lacks_unnamed_files(errno)) throw FileError(errno, target_);
  }
  for (;;) {
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (descriptor_ < 0) throw FileError(errno, target_);
    // Another writer may have taken the file for a leftover before it was locked.
    struct stat named {};
    struct stat own {};
    is_named_ = lock(descriptor_) && ::stat(temporary_.c_str(), &named) == 0 &&
                ::fstat(descriptor_, &own) == 0 && named.st_ino == own.st_ino;
    if (is_named_) return;
    ::close(descriptor_);
  }
}

std::string NewFile::path() const {
  return is_named_ ? temporary_ : "/proc/self/fd/" + std::to_string(descriptor_);
}

int NewFile::append(std::span<const ByteSpan> parts) noexcept {
  std::array<iovec, kMaxParts> room{};
  while (!parts.empty()) {
    std::size_t count = 0;
    for (const ByteSpan part : parts.first(std::min(parts.size(), kMaxParts))) {
      // NOLINTNEXTLINE(*-const-cast): iovec serves reads and writes
      room.at(count++) = {const_cast<std::byte*>(part.data()), part.size()};
    }
    parts = parts.subspan(count);
    std::span<iovec> left = behind(std::span(room).first(count), 0);
    while (!left.empty()) {
      const ssize_t size = ::writev(descriptor_, left.data(), static_cast<int>(left.size()));
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return size < 0 ? errno : ENOSPC;
      advance(static_cast<std::uint64_t>(size));
      left = behind(left, static_cast<std::size_t>(size));
    }
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
  if (::ioctl(descriptor_, FICLONERANGE, &request) != 0) {
    return 0;  // the caller copies the bytes, which reports real errors
  }
  const std::uint64_t end = head + body;
  int error = copy_small(descriptor_, position_, source, {extent.offset, head});
  if (error == 0) {
    error = copy_small(descriptor_, position_ + end, source, {extent.offset + end, extent.size - end});
  }
  if (error != 0) return error;
  shared = true;
  return skip(extent.size);
}

int NewFile::copy(int source, Extent extent, std::uint64_t& done) noexcept {
  for (done = 0; done < extent.size && (copies_ranges_ || sends_);) {
    auto offset = static_cast<off_t>(extent.offset + done);
    const ssize_t size = copies_ranges_
                             ? ::copy_file_range(source, &offset, descriptor_, nullptr, extent.size - done, 0)
                             : ::sendfile(descriptor_, source, &offset, extent.size - done);
    if (size > 0) {
      done += static_cast<std::uint64_t>(size);
      advance(static_cast<std::uint64_t>(size));
    } else if (size == 0) {
      return ESTALE;
    } else if (is_refused(errno)) {
      (copies_ranges_ ? copies_ranges_ : sends_) = false;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// NOLINTNEXTLINE(readability-make-member-function-const): it ends the writing
int NewFile::sync() noexcept { return syncs_ && ::fsync(descriptor_) != 0 ? errno : 0; }

int NewFile::take_name(const char* name) noexcept {
  if (name == nullptr) name = target_.c_str();
  if (gives_way_) {
    abandon();
    return 0;
  }
  if (const int error = take_after_present()) return error;
  if (!is_named_) {
    lock(descriptor_);  // from now on it could be taken for a leftover
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", descriptor_);
    // The system cannot link the file to a name that another file has.
    const char* first = is_new_ ? name : temporary_.c_str();
    if (::linkat(AT_FDCWD, path.data(), AT_FDCWD, first, AT_SYMLINK_FOLLOW) != 0) return errno;
    is_named_ = true;
    may_have_name_ = !is_new_;
  }
  if (may_have_name_) {
    if (const int error = replace(name)) return error;
    may_have_name_ = false;
  }
  if (syncs_) sync_folder(folder_.c_str());
  return 0;
}

void NewFile::drop_name(const char* name) const noexcept {
  struct stat there {};
  struct stat own {};
  const bool is_own = ::lstat(name, &there) == 0 && ::fstat(descriptor_, &own) == 0 &&
                      there.st_ino == own.st_ino && there.st_dev == own.st_dev;
  if (is_own) ::unlink(name);
}

// Renames the file from its temporary name.
int NewFile::replace(const char* name) noexcept {
  if (is_new_) {
    if (::link(temporary_.c_str(), name) == 0) {
      ::unlink(temporary_.c_str());  // else the next writer deletes it
      return 0;
    }
    const int error = errno;
    struct stat there {};
    if (!lacks_links(error) || ::lstat(name, &there) == 0) return error;
  }
  return ::rename(temporary_.c_str(), name) == 0 ? 0 : errno;
}

// The program may have changed the old file's properties since this one was created.
int NewFile::take_after_present() noexcept {
  struct stat old {};
  struct stat fresh {};
  if (::stat(like_.c_str(), &old) != 0) return errno == ENOENT ? 0 : errno;
  if (::fstat(descriptor_, &fresh) != 0) return errno;
  constexpr auto kSame = static_cast<uid_t>(-1);
  if (fresh.st_uid != old.st_uid && ::fchown(descriptor_, old.st_uid, kSame) != 0 && !is_denied(errno)) {
    return errno;
  }
  if (fresh.st_gid != old.st_gid && ::fchown(descriptor_, kSame, old.st_gid) != 0 && !is_denied(errno)) {
    return errno;
  }
  if (::fstat(descriptor_, &fresh) != 0) return errno;
  mode_t mode = old.st_mode & kPermissions;
  if (fresh.st_uid != old.st_uid) {
    mode &= ~static_cast<mode_t>(S_ISUID);
    lost_ |= kLostOwner;
  }
  const bool has_group = fresh.st_gid == old.st_gid;
  if (!has_group) {
    lost_ |= kLostGroup;
    // The new group, and everybody, get the permissions that both the old group and everybody had.
    const mode_t both = (mode >> 3U) & mode & 07U;
    mode = (mode & S_IRWXU) | (both << 3U) | both;
  }
  if (const int error = copy_attributes(like_.c_str(), has_group, mode)) return error;
  return ::fchmod(descriptor_, mode) == 0 ? 0 : errno;
}

// Copies the extended attributes that can be read. Not every file system has them all, and not
// everybody may set them.
int NewFile::copy_attributes(const char* from, bool has_group, mode_t& mode) noexcept {
  char* names = attributes_.get();
  char* value = names + XATTR_LIST_MAX;
  const ssize_t size = ::listxattr(from, names, XATTR_LIST_MAX);
  if (size < 0 && errno != EOPNOTSUPP) return errno;
  bool has_list = false;
  for (const char* name = names; name < names + size; name += std::strlen(name) + 1) {
    const ssize_t length = ::getxattr(from, name, value, XATTR_SIZE_MAX);
    if (length < 0) continue;
    const bool is_list = std::strcmp(name, kAcl) == 0;
    has_list = has_list || is_list;
    const bool is_set = (has_group || !is_list) &&
                        ::fsetxattr(descriptor_, name, value, static_cast<std::size_t>(length), 0) == 0;
    if (is_list && !is_set) {
      mode &= S_IRWXU;
      lost_ |= kLostList;
    }
  }
  if (!has_list) ::fremovexattr(descriptor_, kAcl);  // one may come from the folder
  return 0;
}

void NewFile::adopt() noexcept { owner_ = ::getpid(); }

void NewFile::leave_to_copy() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void NewFile::abandon() noexcept {
  if (may_have_name_ && owner_ == ::getpid()) ::unlink(temporary_.c_str());
  may_have_name_ = false;
  leave_to_copy();
}

void NewFile::advance(std::uint64_t size) noexcept {
  // The disk begins to write now. Otherwise it would idle until the fsync. It is told of small
  // pieces together, since it writes whole blocks.
  position_ += size;
  if (!syncs_ || position_ - begun_ < kBegunTogether) return;
  ::sync_file_range(descriptor_, static_cast<off_t>(begun_), static_cast<off_t>(position_ - begun_),
                    SYNC_FILE_RANGE_WRITE);
  begun_ = position_;
}

int read_part(int source, std::uint64_t offset, std::span<std::byte> into) noexcept {
  while (!into.empty()) {
    const ssize_t got = ::pread(source, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : ESTALE;
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

}  // namespace zerocopy
