// A copy of this process that runs no hooks of the program: no fork handlers of libraries or
// Python, no signal handlers, no exit functions.
#pragma once

#include <sys/types.h>

#include <span>

namespace zerocopy {

// Starts a process that sees a snapshot of this process's memory and keeps only the descriptors in
// `kept`. It calls `work` and exits with its result. Returns the process id. Throws FileError if
// the system cannot create the process.
//
// The copy has one thread. Locks that other threads hold now stay locked in the copy, so `work`
// must take no lock and allocate nothing. Signals other than SIGKILL do not reach the copy. Its
// exit sends no signal, and only waitpid with __WALL or __WCLONE reports it. So the program's own
// waits for children are not disturbed.
pid_t run_in_copy(int (*work)(void*) noexcept, void* argument, std::span<const int> kept);

}  // namespace zerocopy
