// A file registered with cuFile. It moves any bytes between the file and device memory.
//
//   file       │░▒▒▒▒│▒▒▒▒▒▒│▒▒▒░  │     blocks of 4096 bytes
//   memory      ░▒▒▒▒│▒▒▒▒▒▒│▒▒▒░        ░ through the host; ▒ by cuFile
//
// If memory and file offset are not equally aligned, whole blocks go through a bounce buffer.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "gds/driver.h"
#include "io/file.h"

namespace zerocopy {

class RegisteredFile {
 public:
  // Bytes of the file, and their destination in memory.
  struct Piece {
    std::uint64_t offset = 0;
    DeviceMemory memory;
  };

  // Duplicates a descriptor that the caller keeps, with its access mode. Throws UnsupportedError if
  // the file system refuses O_DIRECT, or cuFile refuses the file.
  static std::shared_ptr<RegisteredFile> open(std::shared_ptr<Driver> driver, int descriptor,
                                              std::string name);

  RegisteredFile(const RegisteredFile&) = delete;
  RegisteredFile& operator=(const RegisteredFile&) = delete;
  ~RegisteredFile();

  Driver& driver() const noexcept { return *driver_; }
  const std::string& path() const noexcept { return plain_.path(); }

  // Moves all bytes or throws: FormatError at the end of the file, FileError, or UnsupportedError
  // if cuFile refuses.
  void read(const Piece& piece) const;
  void write(const Piece& piece) const;

  // Reads many pieces, in a batch if the library supports batches. Throws ETIMEDOUT if no request
  // of a batch finishes for `timeout_seconds`.
  void read_all(std::span<const Piece> pieces, unsigned timeout_seconds = 120) const;

  // A read in the order of a stream. `piece` consists of whole, equally aligned blocks.
  class Pending {
   public:
    Pending(std::shared_ptr<const RegisteredFile> file, const Piece& piece, abi::Stream stream);
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending();

    // Waits for the stream, and reads the bytes that cuFile did not read.
    void wait();

   private:
    std::shared_ptr<const RegisteredFile> file_;
    Piece piece_;
    abi::Stream stream_;
    // cuFile reads these fields when the stream reaches the request.
    std::size_t size_ = 0;
    off_t file_offset_ = 0;
    off_t base_offset_ = 0;
    ssize_t done_ = 0;
    bool begun_ = false;
  };

  // The part of a piece that cuFile can move directly: `body` bytes from `head` on. 0 if there are
  // none.
  struct Cut {
    std::uint64_t head = 0;
    std::uint64_t body = 0;
  };
  static Cut cut(const Piece& piece);

 private:
  friend class Batch;

  RegisteredFile(std::shared_ptr<Driver> driver, File plain, File direct)
      : driver_(std::move(driver)), plain_(std::move(plain)), direct_(std::move(direct)) {}

  void read_plainly(const Piece& piece) const;
  void write_plainly(const Piece& piece) const;
  void read_bounced(const Piece& piece) const;
  void write_bounced(const Piece& piece) const;
  template <typename Call>
  std::uint64_t move_blocks(const Piece& piece, const char* name, Call call) const;
  std::uint64_t read_blocks(const Piece& piece) const;
  void write_blocks(const Piece& piece) const;

  std::shared_ptr<Driver> driver_;
  File plain_;
  File direct_;  // the same file
  abi::FileHandle handle_ = nullptr;
};

}  // namespace zerocopy
