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

  // Fills `into` from `offset`. A file that ends sooner throws FormatError, one that was longer when
  // it was opened FileError with ESTALE.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

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
  Version version_;
};

}  // namespace zerocopy
