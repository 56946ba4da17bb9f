// Hooks of libc functions that change names, start programs or connect sockets.
#include <fcntl.h>
#include <netdb.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "watch/area.h"
#include "watch/next.h"

namespace {

using zerocopy::watch::Kind;
using zerocopy::watch::note;

/// Records a name that this process created or removed.
int changed(int result, int folder, const char* path) noexcept {
  if (result == 0) note({.kind = Kind::changed, .folder = folder, .path = path});
  return result;
}

int changed(int result, int folder, const char* path, int other_folder, const char* other) noexcept {
  changed(result, folder, path);
  return changed(result, other_folder, other);
}

/// Records a program that is about to run, if the file exists: a search along PATH tries many
/// names.
void running(const char* path) noexcept {
  if (!zerocopy::watch::is_on() || path == nullptr) return;
  const int before = errno;
  if (std::strchr(path, '/') == nullptr || syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0)
    note({.kind = Kind::ran, .folder = AT_FDCWD, .path = path});
  errno = before;
}

/// Records a shell command. A command that starts with an absolute path keeps its words.
void running_command(const char* command) noexcept {
  if (!zerocopy::watch::is_on() || command == nullptr) return;
  note({.kind = Kind::ran, .path = "/bin/sh", .target = command, .target_size = std::strlen(command)});
}

}  // namespace

ZEROCOPY_NEXT(mkdir)
ZEROCOPY_NEXT(mkdirat)
ZEROCOPY_NEXT(rmdir)
ZEROCOPY_NEXT(unlink)
ZEROCOPY_NEXT(unlinkat)
ZEROCOPY_NEXT(remove)
ZEROCOPY_NEXT(rename)
ZEROCOPY_NEXT(renameat)
ZEROCOPY_NEXT(renameat2)
ZEROCOPY_NEXT(link)
ZEROCOPY_NEXT(linkat)
ZEROCOPY_NEXT(symlink)
ZEROCOPY_NEXT(symlinkat)
ZEROCOPY_NEXT(execve)
ZEROCOPY_NEXT(execv)
ZEROCOPY_NEXT(execvp)
ZEROCOPY_NEXT(execvpe)
ZEROCOPY_NEXT(posix_spawn)
ZEROCOPY_NEXT(posix_spawnp)
ZEROCOPY_NEXT(system)
ZEROCOPY_NEXT(popen)
ZEROCOPY_NEXT(connect)
ZEROCOPY_NEXT(getaddrinfo)

ZEROCOPY_HOOK int mkdir(const char* path, mode_t mode) noexcept {
  return changed(next_mkdir(path, mode), AT_FDCWD, path);
}

ZEROCOPY_HOOK int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return changed(next_mkdirat(folder, path, mode), folder, path);
}

ZEROCOPY_HOOK int rmdir(const char* path) noexcept { return changed(next_rmdir(path), AT_FDCWD, path); }

ZEROCOPY_HOOK int unlink(const char* path) noexcept { return changed(next_unlink(path), AT_FDCWD, path); }

ZEROCOPY_HOOK int unlinkat(int folder, const char* path, int flags) noexcept {
  return changed(next_unlinkat(folder, path, flags), folder, path);
}

ZEROCOPY_HOOK int remove(const char* path) noexcept { return changed(next_remove(path), AT_FDCWD, path); }

ZEROCOPY_HOOK int rename(const char* from, const char* to) noexcept {
  return changed(next_rename(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

ZEROCOPY_HOOK int renameat(int from_folder, const char* from, int folder, const char* to) noexcept {
  return changed(next_renameat(from_folder, from, folder, to), from_folder, from, folder, to);
}

ZEROCOPY_HOOK int renameat2(int from_folder, const char* from, int folder, const char* to,
                            unsigned flags) noexcept {
  return changed(next_renameat2(from_folder, from, folder, to, flags), from_folder, from, folder, to);
}

ZEROCOPY_HOOK int link(const char* from, const char* to) noexcept {
  return changed(next_link(from, to), AT_FDCWD, to);
}

ZEROCOPY_HOOK int linkat(int from_folder, const char* from, int folder, const char* to, int flags) noexcept {
  return changed(next_linkat(from_folder, from, folder, to, flags), folder, to);
}

ZEROCOPY_HOOK int symlink(const char* target, const char* path) noexcept {
  return changed(next_symlink(target, path), AT_FDCWD, path);
}

ZEROCOPY_HOOK int symlinkat(const char* target, int folder, const char* path) noexcept {
  return changed(next_symlinkat(target, folder, path), folder, path);
}

ZEROCOPY_HOOK int execve(const char* path, char* const* arguments, char* const* environment) noexcept {
  running(path);
  return next_execve(path, arguments, environment);
}

ZEROCOPY_HOOK int execv(const char* path, char* const* arguments) noexcept {
  running(path);
  return next_execv(path, arguments);
}

ZEROCOPY_HOOK int execvp(const char* path, char* const* arguments) noexcept {
  running(path);
  return next_execvp(path, arguments);
}

ZEROCOPY_HOOK int execvpe(const char* path, char* const* arguments, char* const* environment) noexcept {
  running(path);
  return next_execvpe(path, arguments, environment);
}

ZEROCOPY_HOOK int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, char* const* arguments,
                              char* const* environment) {
  running(path);
  return next_posix_spawn(pid, path, actions, attributes, arguments, environment);
}

ZEROCOPY_HOOK int posix_spawnp(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                               const posix_spawnattr_t* attributes, char* const* arguments,
                               char* const* environment) {
  running(path);
  return next_posix_spawnp(pid, path, actions, attributes, arguments, environment);
}

ZEROCOPY_HOOK int system(const char* command) {
  running_command(command);
  return next_system(command);
}

ZEROCOPY_HOOK FILE* popen(const char* command, const char* mode) {
  running_command(command);
  return next_popen(command, mode);
}

ZEROCOPY_HOOK int connect(int socket, const struct sockaddr* address, socklen_t size) {
  if (zerocopy::watch::is_on() && address != nullptr && size >= sizeof(sa_family_t)) {
    sockaddr_un local{};
    std::memcpy(&local, address, std::min<size_t>(size, sizeof local));
    local.sun_path[sizeof local.sun_path - 1] = '\0';
    if (local.sun_family != AF_UNIX) local.sun_path[0] = '\0';
    if (local.sun_family != AF_UNSPEC)
      note({.kind = Kind::spoke, .path = local.sun_path, .flags = local.sun_family});
  }
  return next_connect(socket, address, size);
}

ZEROCOPY_HOOK int getaddrinfo(const char* host, const char* service, const struct addrinfo* hints,
                              struct addrinfo** found) {
  // Even a failed lookup decides the call's result, although nothing is connected.
  if (host != nullptr) note({.kind = Kind::spoke, .path = "", .flags = AF_INET});
  return next_getaddrinfo(host, service, hints, found);
}
