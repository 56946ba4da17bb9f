// Hooks of libc functions that open files. Each calls libc's function, then records the file.
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "watch/area.h"
#include "watch/next.h"

// glibc calls these functions if the flags need no mode. No header declares them.
extern "C" {
int __open_2(const char* path, int flags);
int __open64_2(const char* path, int flags);
int __openat_2(int folder, const char* path, int flags);
int __openat64_2(int folder, const char* path, int flags);
}

namespace {

using zerocopy::watch::Kind;
using zerocopy::watch::note;
using zerocopy::watch::note_path;

/// Records an open that returned `descriptor`, and returns the descriptor.
int opened(int descriptor, int folder, const char* path, int flags) noexcept {
  if (!zerocopy::watch::is_on()) return descriptor;
  const int before = errno;
  struct stat status {};
  if (descriptor < 0) {
    note_path({.kind = Kind::opened, .folder = folder, .path = path, .flags = flags, .error = before});
  } else if (syscall(SYS_fstat, descriptor, &status) == 0) {
    note({.kind = Kind::opened, .folder = folder, .path = path, .flags = flags, .status = &status});
  }
  errno = before;
  return descriptor;
}

int flags_of(const char* mode) noexcept {
  const bool is_both = std::strchr(mode, '+') != nullptr;
  if (mode[0] == 'r') return is_both ? O_RDWR : O_RDONLY;
  return (is_both ? O_RDWR : O_WRONLY) | O_CREAT | (mode[0] == 'a' ? O_APPEND : O_TRUNC);
}

FILE* opened(FILE* file, const char* path, const char* mode) noexcept {
  if (zerocopy::watch::is_on()) opened(file == nullptr ? -1 : fileno(file), AT_FDCWD, path, flags_of(mode));
  return file;
}

DIR* listed(DIR* stream, int folder, const char* path) noexcept {
  if (!zerocopy::watch::is_on() || zerocopy::watch::take_mute()) return stream;
  note_path({.kind = Kind::listed, .folder = folder, .path = path, .error = stream == nullptr ? errno : 0});
  return stream;
}

bool has_mode(int flags) noexcept { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

mode_t mode_of(int flags, va_list arguments) noexcept {
  return has_mode(flags) ? static_cast<mode_t>(va_arg(arguments, unsigned)) : 0;
}

}  // namespace

ZEROCOPY_NEXT(open)
ZEROCOPY_NEXT(open64)
ZEROCOPY_NEXT(openat)
ZEROCOPY_NEXT(openat64)
ZEROCOPY_NEXT(creat)
ZEROCOPY_NEXT(creat64)
ZEROCOPY_NEXT(fopen)
ZEROCOPY_NEXT(fopen64)
ZEROCOPY_NEXT(freopen)
ZEROCOPY_NEXT(freopen64)
ZEROCOPY_NEXT(opendir)
ZEROCOPY_NEXT(fdopendir)

ZEROCOPY_HOOK int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(next_open(path, flags, mode), AT_FDCWD, path, flags);
}

ZEROCOPY_HOOK int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(next_open64(path, flags, mode), AT_FDCWD, path, flags);
}

ZEROCOPY_HOOK int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(next_openat(folder, path, flags, mode), folder, path, flags);
}

ZEROCOPY_HOOK int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return opened(next_openat64(folder, path, flags, mode), folder, path, flags);
}

ZEROCOPY_HOOK int __open_2(const char* path, int flags) {
  return opened(next_open(path, flags, 0), AT_FDCWD, path, flags);
}

ZEROCOPY_HOOK int __open64_2(const char* path, int flags) {
  return opened(next_open64(path, flags, 0), AT_FDCWD, path, flags);
}

ZEROCOPY_HOOK int __openat_2(int folder, const char* path, int flags) {
  return opened(next_openat(folder, path, flags, 0), folder, path, flags);
}

ZEROCOPY_HOOK int __openat64_2(int folder, const char* path, int flags) {
  return opened(next_openat64(folder, path, flags, 0), folder, path, flags);
}

ZEROCOPY_HOOK int creat(const char* path, mode_t mode) {
  return opened(next_creat(path, mode), AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC);
}

ZEROCOPY_HOOK int creat64(const char* path, mode_t mode) {
  return opened(next_creat64(path, mode), AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC);
}

ZEROCOPY_HOOK FILE* fopen(const char* path, const char* mode) {
  return opened(next_fopen(path, mode), path, mode);
}

ZEROCOPY_HOOK FILE* fopen64(const char* path, const char* mode) {
  return opened(next_fopen64(path, mode), path, mode);
}

ZEROCOPY_HOOK FILE* freopen(const char* path, const char* mode, FILE* file) {
  return opened(next_freopen(path, mode, file), path, mode);
}

ZEROCOPY_HOOK FILE* freopen64(const char* path, const char* mode, FILE* file) {
  return opened(next_freopen64(path, mode, file), path, mode);
}

ZEROCOPY_HOOK DIR* opendir(const char* path) { return listed(next_opendir(path), AT_FDCWD, path); }

ZEROCOPY_HOOK DIR* fdopendir(int folder) { return listed(next_fdopendir(folder), folder, "."); }
