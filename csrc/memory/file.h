// An open regular file: the descriptor, its size, and reads that never raise SIGBUS.
#pragma once

#include <span>
#include <string>

#include "memory/bytes.h"

namespace zerocopy {

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
  std::uint64_t size() const noexcept { return size_; }
  const std::string& path() const noexcept { return path_; }

  // Fills `into` from `offset`. A file that ends sooner throws FormatError.
  void read(std::uint64_t offset, std::span<std::byte> into) const;

 private:
  File(int descriptor, std::string path);

  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::string path_;
};

}  // namespace zerocopy
