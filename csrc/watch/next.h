// The libc function that stands behind a hook.
#pragma once

#include <dlfcn.h>

#include <atomic>

// A type of a function as a template's argument loses attributes like nonnull, which are of no use there.
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace zerocopy::watch {

/// Finds the next function of a name in the order in which libraries are searched.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) noexcept : name_(name) {}

  /// Call it.
  template <typename... Arguments>
  auto operator()(Arguments... arguments) noexcept(false) {
    return resolve()(arguments...);
  }

  /// Look it up, if that has not been done.
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

// `next_NAME` calls libc's function. It is looked up when the library is loaded: dlsym takes a lock, which a
// forked child could find held for ever.
#define ZEROCOPY_NEXT(name)                                                     \
  static constinit zerocopy::watch::Next<decltype(&::name)> next_##name{#name}; \
  __attribute__((constructor)) static void resolve_##name() { next_##name.resolve(); }

// A function that programs call in the place of libc's.
#define ZEROCOPY_HOOK extern "C" __attribute__((visibility("default")))
