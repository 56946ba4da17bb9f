// The memory that events are recorded in: mapped once, shared with forked children, never unmapped.
#include "watch/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <string_view>

namespace zerocopy::watch {
namespace {

constexpr std::size_t slots = 1U << 16U;
// Flags of a record.
constexpr std::uint8_t is_relative = 1;  // the path was given relative to the current folder
constexpr std::uint8_t is_import = 2;    // recorded during an import of installed code
constexpr std::size_t longest_path = 4096;

struct Record {
  std::uint32_t size;  // of the whole record
  std::uint16_t kind;
  std::uint8_t marks;
  std::atomic<std::uint8_t> is_whole;  // written last, since the writer may be killed before
  std::int32_t error;
  std::uint32_t mode;
  std::uint32_t flags;
  std::uint32_t path_size;
  std::uint32_t target_size;
  std::uint32_t has_status;
  std::uint64_t device;
  std::uint64_t inode;
  std::uint64_t bytes;
  std::int64_t modified;  // nanoseconds
  std::int64_t changed;
};
static_assert(sizeof(Record) == 72, "python/zerocopy/share/conditions/watching.py reads it");

struct Head {
  std::atomic<std::uint32_t> is_on;
  std::atomic<std::uint32_t> is_full;
  std::atomic<std::uint64_t> used;
  std::uint64_t capacity;
  std::array<std::atomic<std::uint64_t>, slots> noted;
};

constinit std::atomic<Head*> current{nullptr};
// In the static TLS block, so the first use in a thread allocates nothing.
__attribute__((tls_model("initial-exec"))) constinit thread_local bool is_muted = false;
__attribute__((tls_model("initial-exec"))) constinit thread_local bool imports = false;

char* records_of(Head* head) noexcept { return static_cast<char*>(static_cast<void*>(head)) + sizeof(Head); }

/// A digest of an event, so each distinct event is recorded once.
class Digest {
 public:
  void add(const void* bytes, std::size_t size) noexcept {
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (std::size_t i = 0; i < size; ++i) {
      value_ = (value_ ^ at[i]) * 0x100000001b3ULL;
    }
  }
  std::uint64_t value() const noexcept { return value_ ^ (value_ >> 29U); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

std::int64_t nanoseconds(const timespec& time) noexcept {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// The folder that a relative path starts from, with a slash. Empty if unknown.
class Folder {
 public:
  explicit Folder(int descriptor) noexcept {
    long size = 0;
    if (descriptor == AT_FDCWD) {
      size = syscall(SYS_getcwd, text_.data(), text_.size() - 1) - 1;  // the result counts the NUL
    } else {
      constexpr std::size_t prefix = 14;
      std::array<char, 32> link{"/proc/self/fd/"};
      *std::to_chars(&link[prefix], &link[link.size() - 1], descriptor).ptr = '\0';
      size = syscall(SYS_readlinkat, AT_FDCWD, link.data(), text_.data(), text_.size() - 1);
    }
    if (size > 0 && text_[0] == '/') {
      size_ = static_cast<std::size_t>(size);
      if (text_[size_ - 1] != '/') text_[size_++] = '/';
    }
  }
  const char* data() const noexcept { return text_.data(); }
  std::size_t size() const noexcept { return size_; }

 private:
  std::array<char, longest_path + 1> text_{};
  std::size_t size_ = 0;
};

bool has(std::string_view path, std::string_view part) noexcept {
  return path.find(part) != std::string_view::npos;
}

/// Returns whether a path belongs to installed or compiled code. Such paths are many, and
/// irrelevant.
bool is_installed_code(std::string_view path) noexcept {
  if (path.ends_with(".pyc")) return has(path, "/__pycache__/");
  return (path.ends_with(".py") || path.ends_with(".so")) &&
         (has(path, "/site-packages/") || has(path, "/dist-packages/") || has(path, "/lib/python3."));
}

char* append(char* to, const char* from, std::size_t size) noexcept {
  if (size > 0) std::memcpy(to, from, size);
  return to + size;
}

void write(Head* head, const Event& event, const char* folder, std::size_t folder_size) noexcept {
  const std::size_t given = strnlen(event.path, longest_path);
  if (is_installed_code({event.path, given})) return;
  Record record{};
  record.kind = static_cast<std::uint16_t>(event.kind);
  if (folder_size > 0 && event.folder == AT_FDCWD) record.marks |= is_relative;
  if (imports) record.marks |= is_import;
  record.error = event.error;
  record.flags = static_cast<std::uint32_t>(event.flags);
  record.path_size = static_cast<std::uint32_t>(folder_size + given);
  record.target_size = static_cast<std::uint32_t>(std::min(event.target_size, longest_path));
  record.size =
      static_cast<std::uint32_t>((sizeof record + record.path_size + record.target_size + 7U) & ~7U);
  if (event.status != nullptr) {
    record.has_status = 1;
    record.mode = event.status->st_mode;
    record.device = event.status->st_dev;
    record.inode = event.status->st_ino;
    record.bytes = static_cast<std::uint64_t>(event.status->st_size);
    record.modified = nanoseconds(event.status->st_mtim);
    record.changed = nanoseconds(event.status->st_ctim);
  }
  Digest digest;
  digest.add(&record, sizeof record);
  digest.add(folder, folder_size);
  digest.add(event.path, given);
  digest.add(event.target, record.target_size);
  if (head->noted[digest.value() % slots].exchange(digest.value(), std::memory_order_relaxed) ==
      digest.value())
    return;

  const std::uint64_t at = head->used.fetch_add(record.size, std::memory_order_relaxed);
  if (at > head->capacity || record.size > head->capacity - at) {
    head->is_full.store(1, std::memory_order_relaxed);
    return;
  }
  char* place = records_of(head) + at;
  std::memcpy(place, static_cast<const void*>(&record), sizeof record);
  char* end = append(place + sizeof record, folder, folder_size);
  end = append(end, event.path, given);
  append(end, event.target, record.target_size);
  std::launder(reinterpret_cast<Record*>(place))->is_whole.store(1, std::memory_order_release);
}

}  // namespace

bool is_on() noexcept {
  const Head* head = current.load(std::memory_order_acquire);
  return head != nullptr && head->is_on.load(std::memory_order_relaxed) != 0;
}

bool take_mute() noexcept {
  const bool was = is_muted;
  is_muted = false;
  return was;
}

void note(const Event& event) noexcept {
  if (!is_on() || event.path == nullptr || event.error == EFAULT) return;
  const int before = errno;
  Head* head = current.load(std::memory_order_acquire);
  if (event.path[0] == '/' || event.kind == Kind::spoke) {
    write(head, event, nullptr, 0);
  } else if (event.path[0] != '\0') {
    const Folder folder(event.folder);
    if (folder.size() > 0) write(head, event, folder.data(), folder.size());
  }
  errno = before;
}

void note_path(Event event) noexcept {
  if (!is_on() || event.path == nullptr || event.error == EFAULT) return;
  const int before = errno;
  struct stat status {};
  const int flags = event.kind == Kind::looked_at ? AT_SYMLINK_NOFOLLOW : 0;
  if (syscall(SYS_newfstatat, event.folder, event.path, &status, flags) == 0) event.status = &status;
  note(event);
  errno = before;
}

}  // namespace zerocopy::watch

// Functions that python/zerocopy/share/conditions/watching.py calls by ctypes.
#define EXPORTED extern "C" __attribute__((visibility("default")))

/// Starts recording, in shared memory of `capacity` bytes. Returns 0 or an errno.
EXPORTED int zerocopy_watch_start(std::uint64_t capacity) noexcept {
  using namespace zerocopy::watch;
  if (current.load() != nullptr) return EBUSY;
  void* memory = mmap(nullptr, sizeof(Head) + capacity, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return errno;
  auto* head = static_cast<Head*>(memory);  // all zeros, as the kernel gives it
  head->capacity = capacity;
  head->is_on.store(1);
  current.store(head, std::memory_order_release);
  return 0;
}

/// Stops recording, in children too.
EXPORTED void zerocopy_watch_stop() noexcept {
  if (auto* head = zerocopy::watch::current.load()) head->is_on.store(0);
}

/// Ignores this thread's next folder listing.
EXPORTED void zerocopy_watch_mute_listing() noexcept { zerocopy::watch::is_muted = true; }

/// Marks the begin or the end of an import of installed code in this thread.
EXPORTED void zerocopy_watch_importing(int is_importing) noexcept {
  zerocopy::watch::imports = is_importing != 0;
}

/// Returns the number of bytes of all records.
EXPORTED std::uint64_t zerocopy_watch_size() noexcept {
  auto* head = zerocopy::watch::current.load();
  return head == nullptr ? 0 : std::min(head->used.load(), head->capacity);
}

/// Returns whether events were dropped for lack of space.
EXPORTED int zerocopy_watch_is_full() noexcept {
  auto* head = zerocopy::watch::current.load();
  return head != nullptr && head->is_full.load() != 0;
}

/// Copies the first `size` bytes of the records.
EXPORTED void zerocopy_watch_read(char* into, std::uint64_t size) noexcept {
  if (auto* head = zerocopy::watch::current.load(); head != nullptr && size > 0) {
    std::atomic_thread_fence(std::memory_order_acquire);
    std::memcpy(into, zerocopy::watch::records_of(head), std::min(size, head->capacity));
  }
}
