// An open regular file, the version that was opened, and reads that never raise SIGBUS.
#pragma once

#include <span>
#include <string>

#include "memory/bytes.h"

namespace zerocopy {

// The parts of stat(2) that change with the file's content. The identity is not among them: a
// descriptor keeps its file even if another file takes the path.
struct Version {
  std::uint64_t size = 0;
  std::uint64_t links = 0;
  std::int64_t modified = 0;  // of the content, in nanoseconds since 1970
  std::int64_t changed = 0;   // of the content or the metadata; programs cannot set it
};

class File {
 public:
  enum class Access : std::uint8_t { read, read_write };

  // Opens without blocking. Refuses all but regular files: a FIFO would wait for a writer, and a
  // device has no size. Throws FileError.
  static File open(const std::string& path, Access access);

  // Opens the same file again with O_DIRECT, for reading, and for writing if `file` allows it. If
  // the file system refuses O_DIRECT, opens it without: see is_direct(). Throws FileError.
  static File reopen_direct(const File& file);

  // Duplicates a descriptor that the caller keeps. `name` is for errors.
  static File duplicate(int descriptor, std::string name);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  int descriptor() const noexcept { return descriptor_; }
  std::uint64_t size() const noexcept { return version_.size; }
  const std::string& path() const noexcept { return path_; }
  bool is_direct() const;
  std::uint64_t inode() const noexcept { return inode_; }

  // Fills `into` from `offset`. Throws FormatError if the file is too short, and FileError with
  // ESTALE if the file was longer when it was opened.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

  // Makes one pread and returns the number of bytes, 0 at the end of the file. Throws FileError.
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const;

  // Tells the kernel that these ranges will be read in order. Their offsets are relative to `start`.
  // Does nothing if the middle range is in the page cache. Otherwise the kernel reads ranges that are
  // far apart in the background. Ranges that are close together are read before this returns, with
  // the bytes between them.
  void expect(std::span<const Extent> ranges, std::uint64_t start) const;

  // Reads a range into the page cache. Throws FileError, with ESTALE if the file ends before.
  void read_through(Extent extent) const;

  // Throws FileError with ESTALE when the file was written or cut since it was opened. Makes one
  // fstat. Some changes are invisible: a second write within one tick of the file system's clock,
  // and any store through a mapping to a page that was already stored to. On tmpfs no store through
  // a mapping updates the file's times.
  void require_unchanged() const;

  // Throws FileError if the path cannot be read (ENOENT, ...), names another file, or this file
  // became shorter (ESTALE). Duplicated descriptors have no known path.
  void require_in_place() const;

 private:
  File(int descriptor, std::string path, bool by_path);

  int descriptor_ = -1;
  std::string path_;
  bool by_path_ = false;
  std::uint64_t inode_ = 0;
  Version version_;
};

}  // namespace zerocopy
