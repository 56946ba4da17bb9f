// A file that cuFile knows: any bytes of it to any device memory, and back.
//
//   file       │░▒▒▒▒│▒▒▒▒▒▒│▒▒▒░  │     blocks of 4096 bytes
//   memory      ░▒▒▒▒│▒▒▒▒▒▒│▒▒▒░        ░ over the host, by plain reading; ▒ by cuFile
//
// What lies at other places of its pages than the file's bytes do of their blocks goes through a bounce
// buffer, whole blocks of the file at a time.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "gds/driver.h"
#include "io/file.h"

namespace zerocopy {

class RegisteredFile {
 public:
  // Where bytes of the file belong in memory.
  struct Piece {
    std::uint64_t offset = 0;
    DeviceMemory memory;
  };

  // Shares a descriptor that the caller keeps; read and written as that is. Throws UnsupportedError where the
  // file system refuses O_DIRECT, or cuFile the file.
  static std::shared_ptr<RegisteredFile> open(std::shared_ptr<Driver> driver, int descriptor,
                                              std::string name);

  RegisteredFile(const RegisteredFile&) = delete;
  RegisteredFile& operator=(const RegisteredFile&) = delete;
  ~RegisteredFile();

  Driver& driver() const noexcept { return *driver_; }
  const std::string& path() const noexcept { return plain_.path(); }

  // All of it, or they throw: FormatError where the file ends, FileError, UnsupportedError where cuFile
  // refuses.
  void read(const Piece& piece) const;
  void write(const Piece& piece) const;

  // Many at once: by a batch where the library has them, else one after the other. Where nothing of a batch
  // comes to an end for `patience` seconds it is given up: ETIMEDOUT.
  void read_all(std::span<const Piece> pieces, unsigned patience = 120) const;

  // A read in the order of a stream's work. `piece` is as cuFile takes it: whole blocks, lying alike.
  class Pending {
   public:
    Pending(std::shared_ptr<const RegisteredFile> file, const Piece& piece, abi::Stream stream);
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending();

    // Waits for the stream, and reads what cuFile did not.
    void wait();

   private:
    std::shared_ptr<const RegisteredFile> file_;
    Piece piece_;
    abi::Stream stream_;
    // cuFile looks at these when the stream comes to it.
    std::size_t size_ = 0;
    off_t file_offset_ = 0;
    off_t base_offset_ = 0;
    ssize_t done_ = 0;
    bool begun_ = false;
  };

  // How much of a piece cuFile can take as it is: from `head` on `body` bytes. No body: nothing.
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
