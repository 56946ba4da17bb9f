// Notes of what a process asks of the file system, in memory that it shares with the children that it forks.
//
//   Head | marks of what was noted before | Record path target | Record path target | ...
//
// Writers reserve room by one atomic addition and fill it in: no lock and no allocation, so a hook may run in
// a signal handler, in a thread, or between fork and exec. Records are padded to eight bytes.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace zerocopy::watch {

/// The kinds of request. python/zerocopy/share/conditions/watching.py has the same numbers.
enum class Kind : std::uint16_t {
  opened = 1,     // flags are those of open(2)
  looked = 2,     // as stat(2), which follows links
  looked_at = 3,  // as lstat(2)
  asked = 4,      // as access(2)
  listed = 5,
  followed = 6,  // as readlink(2): the target is what the link says
  resolved = 7,  // as realpath(3)
  changed = 8,   // created, removed or renamed
  ran = 9,       // another program was started
  spoke = 10,    // a socket was connected: flags are the family
};

/// One thing that was asked. `status` is null where there is nothing.
struct Event {
  Kind kind = Kind::looked;
  int folder = 0;  // what a relative path starts from: a descriptor, or AT_FDCWD
  const char* path = nullptr;
  int flags = 0;
  int error = 0;
  const struct stat* status = nullptr;
  const char* target = nullptr;
  std::size_t target_size = 0;
};

/// Whether events are noted now.
bool is_on() noexcept;

/// Whether this thread's next listing of a folder is not to be noted; said once, it counts once.
bool take_mute() noexcept;

/// Note an event. Leaves errno as it is.
void note(const Event& event) noexcept;

/// Note what stat(2) says of a path, asking the kernel again. `error` is why the call failed, or 0.
void note_path(Event event) noexcept;

}  // namespace zerocopy::watch
