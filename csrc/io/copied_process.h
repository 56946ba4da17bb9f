// A copy of this process, made by a fork that runs none of the program's code: no hooks of fork in libraries
// or in Python, no handlers of signals, no functions of exit.
#pragma once

#include <sys/types.h>

#include <span>

namespace zerocopy {

// Returns the number of a process that shows the memory of this one as it is now, does `work`, which returns
// its exit status, and has no descriptors but `kept`. Throws FileError where the system makes no process.
//
// In the copy there is one thread, and any lock that another thread holds now is held for ever: `work` takes
// none, and allocates nothing. Signals do not reach it, SIGKILL excepted. The end of the copy sends no signal
// either, and waitpid reports it only to who asks with __WALL or __WCLONE: the program's own waiting for
// children sees nothing.
pid_t run_in_copy(int (*work)(void*) noexcept, void* argument, std::span<const int> kept);

}  // namespace zerocopy
