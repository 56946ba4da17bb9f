// An open regular file: the descriptor, the version that was opened, and reads that never raise SIGBUS.
#pragma once

#include <span>
#include <string>

#include "memory/bytes.h"

namespace zerocopy {

// What the system says of a file that changes with its bytes. Which file it is does not: a
// descriptor stays with its file, also when another one takes the path.
struct Version {
  std::uint64_t size = 0;
  std::uint64_t links = 0;
  std::int64_t modified = 0;  // the bytes, in nanoseconds since 1970
  std::int64_t changed = 0;   // the bytes or anything else; nobody can set it
};

class File {
 public:
  enum class Access : std::uint8_t { read, read_write };

  // Opens without blocking and refuses anything but a regular file: a FIFO would wait for a
  // writer, a device has no size. Throws FileError.
  static File open(const std::string& path, Access access);

  // The same file once more, to be read, and written to where the other is, past the page cache; plainly
  // where the file system refuses that, see is_direct(). Throws FileError.
  static File reopen_direct(const File& file);

  // Shares a descriptor that the caller keeps; `name` is what errors call the file.
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

  // Fills `into` from `offset`. A file that ends sooner throws FormatError, one that was longer when
  // it was opened FileError with ESTALE.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

  // What one pread gives: fewer bytes than asked for, at the end none. Throws FileError.
  std::size_t read_some(std::uint64_t offset, std::span<std::byte> into) const;

  // These, counted from `start`, will be read soon, one after the other. Where the one in the middle is not
  // in the page cache the kernel is asked for all of them at once, and nothing waits.
  void expect(std::span<const Extent> ranges, std::uint64_t start) const;

  // Throws FileError with ESTALE when the file was written to, or cut, since it was opened. One
  // fstat. Not all can be seen: two writes within one tick of the file system's clock are one to
  // it, and stores through another's mapping are dated at the first to a page, on tmpfs never.
  void require_unchanged() const;

  // Throws what the system says of its path (ENOENT, ...), or FileError with ESTALE when that leads to
  // another file now or this one became shorter. Of a duplicated descriptor the path is not known.
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
