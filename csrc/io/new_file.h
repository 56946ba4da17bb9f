// Writes a new file and gives it its name, by system calls alone.
//
// These functions do not allocate, lock or throw. So a forked child can call them even if other
// threads of the parent held locks at the fork. Each function returns 0 or an errno.
#pragma once

#include <span>

#include "memory/bytes.h"

namespace zerocopy {

// The names for a finished file. The strings must outlive this object.
struct FileNaming {
  const char* target;     // absolute, without symbolic links
  const char* folder;     // the target's folder
  const char* temporary;  // the file's first name, in that folder
  bool is_named;          // whether the file already has the temporary name
  // Readable once earlier writers of the same target have ended. The last writer wins.
  std::span<const int> earlier;
};

class NewFile {
 public:
  // The caller keeps the descriptor, which is at the beginning of the file.
  explicit NewFile(int descriptor) noexcept : descriptor_(descriptor) {}

  int descriptor() const noexcept { return descriptor_; }

  // Appends both, in one system call if possible.
  int append(ByteSpan first, ByteSpan second) noexcept;

  // Appends zeros as a hole.
  int skip(std::uint64_t size) noexcept;

  // Appends a part of another file by sharing its blocks. If that is impossible, sets `shared` to
  // false and appends nothing.
  int share(int source, Extent extent, bool& shared) noexcept;

  // Appends a part of another file, in the kernel if possible, else through `buffer`. Returns
  // ESTALE if that file was cut.
  int copy(int source, Extent extent, std::span<std::byte> buffer) noexcept;

  // Syncs the file to disk and gives it its name.
  int finish(const FileNaming& naming) noexcept;

 private:
  int copy_in_kernel(int source, Extent extent, std::uint64_t& done) noexcept;
  int copy_through(int source, Extent extent, std::span<std::byte> buffer, std::uint64_t& done) noexcept;
  void narrow_to(const char* target) noexcept;
  void advance(std::uint64_t size) noexcept;

  int descriptor_;
  std::uint64_t position_ = 0;
  bool copies_ranges_ = true;
  bool sends_ = true;
};

// Fills `into` from a file. At the end of the file `size` is smaller.
int read_part(int source, std::uint64_t offset, std::span<std::byte> into, std::size_t& size) noexcept;

// Removes the temporary name of an abandoned file.
void forget(const FileNaming& naming) noexcept;

}  // namespace zerocopy
