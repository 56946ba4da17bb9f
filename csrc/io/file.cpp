#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

namespace zerocopy {
namespace {

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

Version version_of(const struct stat& status) {
  return {.size = static_cast<std::uint64_t>(status.st_size),
          .links = status.st_nlink,
          .modified = nanoseconds(status.st_mtim),
          .changed = nanoseconds(status.st_ctim)};
}

// A disk reads this many bytes in the time of one more request.
constexpr std::uint64_t kClose = std::uint64_t{32} << 10U;

bool has_same_bytes(const Version& then, const Version& now) {
  if (now.size != then.size || now.modified != then.modified) return false;
  // `modified` can be set back, so compare `changed` too. But `changed` also counts link
  // operations: a file replaced by rename lost a link and kept its bytes.
  return now.changed == then.changed || now.links != then.links;
}

}  // namespace

File File::open(const std::string& path, Access access) {
  const int flags = access == Access::read ? O_RDONLY : O_RDWR;
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw FileError(errno, path);
  return {descriptor, path, true};
}

File File::reopen_direct(const File& file) {
  // Opens the descriptor's own name, since another file may have taken the path.
  const std::string self = "/proc/self/fd/" + std::to_string(file.descriptor_);
  const int access = ::fcntl(file.descriptor_, F_GETFL) & O_ACCMODE;
  const int descriptor = ::open(self.c_str(), access | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
  return descriptor < 0 ? duplicate(file.descriptor_, file.path_) : File(descriptor, file.path_, false);
}

bool File::is_direct() const { return (::fcntl(descriptor_, F_GETFL) & O_DIRECT) != 0; }

File File::duplicate(int descriptor, std::string name) {
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw FileError(errno, std::move(name));
  return {copy, std::move(name), false};
}

// Sets the members before anything can throw, so ~File closes a refused file.
File::File(int descriptor, std::string path, bool by_path)
    : descriptor_(descriptor), path_(std::move(path)), by_path_(by_path) {
  struct stat status {};
  const int failed = ::fstat(descriptor_, &status) != 0 ? errno
                     : S_ISDIR(status.st_mode)          ? EISDIR
                     : !S_ISREG(status.st_mode)         ? EINVAL
                                                        : 0;
  if (failed != 0) {
    ::close(descriptor_);
    throw FileError(failed, path_);
  }
  inode_ = status.st_ino;
  version_ = version_of(status);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      by_path_(other.by_path_),
      inode_(other.inode_),
      version_(other.version_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(by_path_, other.by_path_);
  std::swap(inode_, other.inode_);
  std::swap(version_, other.version_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t File::read_some(std::uint64_t offset, std::span<std::byte> into) const {
  for (;;) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw FileError(errno, path_);
  }
}

void File::expect(std::span<const Extent> ranges, std::uint64_t start) const {
  if (ranges.size() < 2) return;
  std::byte first{};
  const iovec one{&first, 1};
  const auto middle = static_cast<off_t>(start + ranges[ranges.size() / 2].offset);
  if (::preadv2(descriptor_, &one, 1, middle, RWF_NOWAIT) == 1) return;
  for (std::size_t i = 0; i < ranges.size();) {
    const std::size_t head = i;
    const std::uint64_t begin = ranges[head].offset;
    std::uint64_t end = begin + ranges[head].size;
    while (++i < ranges.size() && ranges[i].offset >= begin && ranges[i].offset <= end + kClose) {
      end = std::max(end, ranges[i].offset + ranges[i].size);
    }
    if (i == head + 1) {
      ::posix_fadvise(descriptor_, static_cast<off_t>(start + begin), static_cast<off_t>(end - begin),
                      POSIX_FADV_WILLNEED);
    } else {
      // When a process reads in order, the kernel's own readahead makes larger requests than
      // POSIX_FADV_WILLNEED does.
      read_through({start + begin, end - begin});
    }
  }
}

void File::read_through(Extent extent) const {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20U;
  std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(kPart, extent.size)));
  for (std::uint64_t at = 0; at < extent.size;) {
    const std::size_t got =
        read_some(extent.offset + at, std::span(scratch).first(std::min(kPart, extent.size - at)));
    if (got == 0) throw FileError(ESTALE, path_, "file was cut since it was opened");
    at += got;
  }
}

void File::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const std::size_t got = read_some(offset, into);
    if (got == 0) {
      require_unchanged();
      throw FormatError("the file ends before byte " + hex(offset));
    }
    into = into.subspan(got);
    offset += got;
  }
}

void File::require_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw FileError(errno, path_);
  if (!has_same_bytes(version_, version_of(status))) {
    throw FileError(ESTALE, path_, "file changed since it was opened");
  }
}

void File::require_in_place() const {
  struct stat here {};
  struct stat there {};
  if (::fstat(descriptor_, &here) != 0) throw FileError(errno, path_);
  if (by_path_ && ::stat(path_.c_str(), &there) != 0) throw FileError(errno, path_);
  if (by_path_ && (here.st_dev != there.st_dev || here.st_ino != there.st_ino)) {
    throw FileError(ESTALE, path_, "another file has taken its place since it was opened: load that file");
  }
  if (version_of(here).size < version_.size)
    throw FileError(ESTALE, path_, "file was cut since it was opened");
}

}  // namespace zerocopy
