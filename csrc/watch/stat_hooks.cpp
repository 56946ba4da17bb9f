// Hooks of libc functions that query paths. Each calls libc's function, then records the answer.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "watch/area.h"
#include "watch/next.h"

// Programs built with an older glibc, or with buffer checks, call these functions. No header
// declares them.
extern "C" {
int __xstat(int version, const char* path, struct stat* status) noexcept;
int __lxstat(int version, const char* path, struct stat* status) noexcept;
int __fxstatat(int version, int folder, const char* path, struct stat* status, int flags) noexcept;
int __xstat64(int version, const char* path, struct stat64* status) noexcept;
int __lxstat64(int version, const char* path, struct stat64* status) noexcept;
int __fxstatat64(int version, int folder, const char* path, struct stat64* status, int flags) noexcept;
ssize_t __readlink_chk(const char* path, char* target, size_t size, size_t room) noexcept;
ssize_t __readlinkat_chk(int folder, const char* path, char* target, size_t size, size_t room) noexcept;
char* __realpath_chk(const char* path, char* resolved, size_t room) noexcept;
}

namespace {

using zerocopy::watch::Kind;
using zerocopy::watch::note;
using zerocopy::watch::note_path;

static_assert(sizeof(struct stat) == sizeof(struct stat64), "one structure serves both");

const struct stat* plain(const struct stat64* status) noexcept {
  return static_cast<const struct stat*>(static_cast<const void*>(status));
}

int looked(int result, Kind kind, int folder, const char* path, const struct stat* status) noexcept {
  if (!zerocopy::watch::is_on()) return result;
  note({.kind = kind,
        .folder = folder,
        .path = path,
        .error = result == 0 ? 0 : errno,
        .status = result == 0 ? status : nullptr});
  return result;
}

Kind kind_of(int flags) noexcept {
  return (flags & AT_SYMLINK_NOFOLLOW) != 0 ? Kind::looked_at : Kind::looked;
}

/// Calls the kernel directly: glibc keeps these entry points only for old programs, and dlsym does
/// not find them.
int ask(int folder, const char* path, void* status, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, status, flags));
}

int asked(int result, int folder, const char* path, int mode) noexcept {
  if (!zerocopy::watch::is_on()) return result;
  note_path(
      {.kind = Kind::asked, .folder = folder, .path = path, .flags = mode, .error = result == 0 ? 0 : errno});
  return result;
}

ssize_t followed(ssize_t size, int folder, const char* path, const char* target) noexcept {
  if (!zerocopy::watch::is_on()) return size;
  if (size < 0) {
    note_path({.kind = Kind::looked_at, .folder = folder, .path = path, .error = errno});
  } else {
    note({.kind = Kind::followed,
          .folder = folder,
          .path = path,
          .target = target,
          .target_size = static_cast<size_t>(size)});
  }
  return size;
}

char* resolved(char* found, const char* path) noexcept {
  if (!zerocopy::watch::is_on()) return found;
  if (found == nullptr) {
    note_path({.kind = Kind::looked, .folder = AT_FDCWD, .path = path, .error = errno});
  } else {
    note({.kind = Kind::resolved,
          .folder = AT_FDCWD,
          .path = path,
          .target = found,
          .target_size = std::strlen(found)});
  }
  return found;
}

}  // namespace

ZEROCOPY_NEXT(stat)
ZEROCOPY_NEXT(stat64)
ZEROCOPY_NEXT(lstat)
ZEROCOPY_NEXT(lstat64)
ZEROCOPY_NEXT(fstatat)
ZEROCOPY_NEXT(fstatat64)
ZEROCOPY_NEXT(statx)
ZEROCOPY_NEXT(access)
ZEROCOPY_NEXT(faccessat)
ZEROCOPY_NEXT(eaccess)
ZEROCOPY_NEXT(euidaccess)
ZEROCOPY_NEXT(readlink)
ZEROCOPY_NEXT(readlinkat)
ZEROCOPY_NEXT(realpath)

ZEROCOPY_HOOK int stat(const char* path, struct stat* status) noexcept {
  return looked(next_stat(path, status), Kind::looked, AT_FDCWD, path, status);
}

ZEROCOPY_HOOK int stat64(const char* path, struct stat64* status) noexcept {
  return looked(next_stat64(path, status), Kind::looked, AT_FDCWD, path, plain(status));
}

ZEROCOPY_HOOK int lstat(const char* path, struct stat* status) noexcept {
  return looked(next_lstat(path, status), Kind::looked_at, AT_FDCWD, path, status);
}

ZEROCOPY_HOOK int lstat64(const char* path, struct stat64* status) noexcept {
  return looked(next_lstat64(path, status), Kind::looked_at, AT_FDCWD, path, plain(status));
}

ZEROCOPY_HOOK int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return looked(next_fstatat(folder, path, status, flags), kind_of(flags), folder, path, status);
}

ZEROCOPY_HOOK int fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
  return looked(next_fstatat64(folder, path, status, flags), kind_of(flags), folder, path, plain(status));
}

ZEROCOPY_HOOK int statx(int folder, const char* path, int flags, unsigned mask,
                        struct statx* status) noexcept {
  const int result = next_statx(folder, path, flags, mask, status);
  if (zerocopy::watch::is_on())
    note_path({.kind = kind_of(flags), .folder = folder, .path = path, .error = result == 0 ? 0 : errno});
  return result;
}

ZEROCOPY_HOOK int __xstat(int, const char* path, struct stat* status) noexcept {
  return looked(ask(AT_FDCWD, path, status, 0), Kind::looked, AT_FDCWD, path, status);
}

ZEROCOPY_HOOK int __lxstat(int, const char* path, struct stat* status) noexcept {
  return looked(ask(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW), Kind::looked_at, AT_FDCWD, path, status);
}

ZEROCOPY_HOOK int __fxstatat(int, int folder, const char* path, struct stat* status, int flags) noexcept {
  return looked(ask(folder, path, status, flags), kind_of(flags), folder, path, status);
}

ZEROCOPY_HOOK int __xstat64(int, const char* path, struct stat64* status) noexcept {
  return looked(ask(AT_FDCWD, path, status, 0), Kind::looked, AT_FDCWD, path, plain(status));
}

ZEROCOPY_HOOK int __lxstat64(int, const char* path, struct stat64* status) noexcept {
  return looked(ask(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW), Kind::looked_at, AT_FDCWD, path,
                plain(status));
}

ZEROCOPY_HOOK int __fxstatat64(int, int folder, const char* path, struct stat64* status, int flags) noexcept {
  return looked(ask(folder, path, status, flags), kind_of(flags), folder, path, plain(status));
}

ZEROCOPY_HOOK int access(const char* path, int mode) noexcept {
  return asked(next_access(path, mode), AT_FDCWD, path, mode);
}

ZEROCOPY_HOOK int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return asked(next_faccessat(folder, path, mode, flags), folder, path, mode);
}

ZEROCOPY_HOOK int eaccess(const char* path, int mode) noexcept {
  return asked(next_eaccess(path, mode), AT_FDCWD, path, mode);
}

ZEROCOPY_HOOK int euidaccess(const char* path, int mode) noexcept {
  return asked(next_euidaccess(path, mode), AT_FDCWD, path, mode);
}

ZEROCOPY_HOOK ssize_t readlink(const char* path, char* target, size_t size) noexcept {
  return followed(next_readlink(path, target, size), AT_FDCWD, path, target);
}

ZEROCOPY_HOOK ssize_t readlinkat(int folder, const char* path, char* target, size_t size) noexcept {
  return followed(next_readlinkat(folder, path, target, size), folder, path, target);
}

ZEROCOPY_HOOK ssize_t __readlink_chk(const char* path, char* target, size_t size, size_t room) noexcept {
  if (size > room) std::abort();
  return readlink(path, target, size);
}

ZEROCOPY_HOOK ssize_t __readlinkat_chk(int folder, const char* path, char* target, size_t size,
                                       size_t room) noexcept {
  if (size > room) std::abort();
  return readlinkat(folder, path, target, size);
}

ZEROCOPY_HOOK char* realpath(const char* path, char* into) noexcept {
  return resolved(next_realpath(path, into), path);
}

ZEROCOPY_HOOK char* __realpath_chk(const char* path, char* into, size_t room) noexcept {
  if (room < 4096) std::abort();
  return realpath(path, into);
}
