// Finds the libc function that a hook replaces.
#pragma once

#include <dlfcn.h>

#include <atomic>

// Template arguments of function types lose attributes such as nonnull, which are not needed here.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace zerocopy::watch {

/// Finds the next function of this name in the search order of libraries.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) noexcept : name_(name) {}

  /// Calls the function.
  template <typename... Arguments>
  auto operator()(Arguments... arguments) noexcept(false) {
    return resolve()(arguments...);
  }

  /// Looks the function up, if that was not done yet.
  Function resolve() noexcept {
    void* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = dlsym(RTLD_NEXT, name_);
      found_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function>(found);
  }

 private:
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace zerocopy::watch

// Defines `next_NAME`, which calls libc's function. The lookup happens when the library is loaded:
// dlsym takes a lock that a forked child could find locked forever.
#define ZEROCOPY_NEXT(name)                                                     \
  static constinit zerocopy::watch::Next<decltype(&::name)> next_##name{#name}; \
  __attribute__((constructor)) static void resolve_##name() { next_##name.resolve(); }

// Declares a function that programs call in place of libc's.
#define ZEROCOPY_HOOK extern "C" __attribute__((visibility("default")))
