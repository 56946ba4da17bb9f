#include "io/copied_process.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include "memory/errors.h"

namespace zerocopy {
namespace {

// Missing from the headers of Linux before 5.9.
constexpr long kCloseRange = 436;
constexpr unsigned kLastDescriptor = ~0U;
constexpr rlim_t kMaxDescriptors = 1U << 20U;

void close_between(unsigned first, unsigned last) noexcept {
  if (first > last || ::syscall(kCloseRange, first, last, 0U) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto end = static_cast<unsigned>(std::min(limit.rlim_cur, kMaxDescriptors));
  for (unsigned i = first; i <= last && i < end; ++i) ::close(static_cast<int>(i));
}

// Descriptors that stay open would delay other processes that wait for the end of a pipe, a socket
// or a lock of the program.
void close_all_but(std::span<const int> kept) noexcept {
  unsigned next = 0;
  for (const int descriptor : kept) {
    const auto number = static_cast<unsigned>(descriptor);
    if (number > 0) close_between(next, number - 1);
    next = number + 1;
  }
  close_between(next, kLastDescriptor);
}

}  // namespace

pid_t run_in_copy(int (*work)(void*) noexcept, void* argument, std::span<const int> kept) {
  std::vector<int> sorted(kept.begin(), kept.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  sigset_t all;     // NOLINT(*-member-init): the next line fills it
  sigset_t before;  // NOLINT(*-member-init): pthread_sigmask fills it
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // Not fork(), which calls the fork handlers of libraries. The lowest byte, the exit signal, is 0.
  const long made = ::syscall(SYS_clone, 0L, nullptr, nullptr, nullptr, nullptr);
  if (made == 0) {
    close_all_but(sorted);
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::prctl(PR_SET_NAME, "zerocopy-save");
    ::_exit(work(argument));
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (made < 0) throw FileError(error, "", "the system could not copy this process");
  return static_cast<pid_t>(made);
}

}  // namespace zerocopy
