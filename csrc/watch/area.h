// Records requests to the file system, in memory shared with forked children.
//
//   Head | digests of recorded events | Record path target | Record path target | ...
//
// A writer reserves space by one atomic addition and then fills it. Writers neither lock nor
// allocate, so hooks may run in signal handlers, in threads, or between fork and exec. Records are
// padded to eight bytes.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace zerocopy::watch {

/// The kinds of request. python/zerocopy/share/conditions/watching.py uses the same numbers.
enum class Kind : std::uint16_t {
  opened = 1,     // open(2), with its flags
  looked = 2,     // stat(2), which follows links
  looked_at = 3,  // lstat(2)
  asked = 4,      // access(2)
  listed = 5,
  followed = 6,  // readlink(2); the target is the link's text
  resolved = 7,  // realpath(3)
  changed = 8,   // a name was created, removed or renamed
  ran = 9,       // a program was started
  spoke = 10,    // connect(2); flags is the address family
};

/// One request. `status` is null if the path does not exist.
struct Event {
  Kind kind = Kind::looked;
  int folder = 0;  // the base of a relative path: a descriptor, or AT_FDCWD
  const char* path = nullptr;
  int flags = 0;
  int error = 0;
  const struct stat* status = nullptr;
  const char* target = nullptr;
  std::size_t target_size = 0;
};

/// Returns whether events are recorded now.
bool is_on() noexcept;

/// Returns whether this thread's next folder listing is to be ignored, and resets that flag.
bool take_mute() noexcept;

/// Records an event. Preserves errno.
void note(const Event& event) noexcept;

/// Records the result of stat(2) for a path, by asking the kernel again. `error` is the errno of
/// the call, or 0.
void note_path(Event event) noexcept;

}  // namespace zerocopy::watch
