// A file that only this process writes to, and its name: by system calls alone.
//
// Nothing here allocates, locks or throws, so a child of fork can do it while other threads of the parent
// held any lock at the fork. Each function returns 0 or an errno.
#pragma once

#include <span>

#include "memory/bytes.h"

namespace zerocopy {

// How a whole file takes its name. The strings outlive it.
struct FileNaming {
  const char* target;     // absolute, and no symbolic link
  const char* folder;     // of the target
  const char* temporary;  // in that folder: the file's first name
  bool is_named;          // it has that name already
  // Readable when an earlier writer of the same target has ended: this one is the later, and wins.
  std::span<const int> earlier;
};

class NewFile {
 public:
  // A descriptor that stays the caller's, at the file's beginning.
  explicit NewFile(int descriptor) noexcept : descriptor_(descriptor) {}

  int descriptor() const noexcept { return descriptor_; }

  // Appends both, in one call to the system where it takes them at once.
  int append(ByteSpan first, ByteSpan second) noexcept;

  // Appends zeros: a hole.
  int skip(std::uint64_t size) noexcept;

  // Appends a part of another file as references to its blocks. `shared` is false where that cannot be;
  // nothing was appended then.
  int share(int source, Extent extent, bool& shared) noexcept;

  // Appends a part of another file: within the kernel where it can, else through `buffer`. ESTALE: the file
  // was cut.
  int copy(int source, Extent extent, std::span<std::byte> buffer) noexcept;

  // Brings the file to the disk and gives it its name.
  int finish(const FileNaming& naming) noexcept;

 private:
  int copy_in_kernel(int source, Extent extent, std::uint64_t& done) noexcept;
  int copy_through(int source, Extent extent, std::span<std::byte> buffer, std::uint64_t& done) noexcept;
  void advance(std::uint64_t size) noexcept;

  int descriptor_;
  std::uint64_t position_ = 0;
  bool copies_ranges_ = true;
  bool sends_ = true;
};

// Fills `into` from a file, or less at the file's end: then `size` says how much.
int read_part(int source, std::uint64_t offset, std::span<std::byte> into, std::size_t& size) noexcept;

// Gives up the temporary name of a file that is not going to be finished.
void forget(const FileNaming& naming) noexcept;

}  // namespace zerocopy
