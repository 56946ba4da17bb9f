// Maps a file. A mapping lives as long as a Region that shares it, and needs no Python to die: a tensor
// may be freed by any thread, at any time, also after the interpreter is gone.
#pragma once

#include <memory>

#include "io/file.h"
#include "memory/region.h"

namespace zerocopy {

// numpy's mode letters.
enum class Mode : std::uint8_t {
  copy_on_write,  // "c"   writes stay in this process
  read_only,      // "r"   writes fault
  shared,         // "r+"  writes reach the file
};

// These bytes of the file. Private mappings reserve no swap (MAP_NORESERVE): without it the kernel
// refuses a writable mapping larger than memory although nothing will be written. Throws FormatError
// when the extent leaves the file, FileError when the system refuses.
Region map_extent(const File& file, Extent extent, Mode mode);

// The file from `offset` to its end.
Region map_file(const File& file, std::uint64_t offset, Mode mode);

// Bytes of a file in memory, wherever they are wanted.
class Mapper {
 public:
  Mapper() = default;
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;
  virtual ~Mapper() = default;

  virtual Region region(Extent extent) = 0;

  // The same bytes, on pages of their own where that can be: advice on how they are read then concerns no
  // others.
  virtual Region region_apart(Extent extent) { return region(extent); }

  // Whether bytes at that offset lie at a multiple of `alignment` in memory.
  virtual bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const = 0;
};

// All of it at once: a file that was mapped whole, or a buffer.
class WholeMapper final : public Mapper {
 public:
  // None for no bytes.
  static std::shared_ptr<Mapper> of(Region whole);

  explicit WholeMapper(Region whole) : whole_(std::move(whole)) {}

  Region region(Extent extent) override { return whole_.slice(extent); }
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override;

 private:
  Region whole_;
};

// How the pages of mapped bytes are going to be read.
enum class Advice : std::uint8_t {
  together,   // the kernel reads on around each page that is touched, megabytes of it
  scattered,  // it reads the pages that are touched and no others
  soon,       // it begins to read them all now; nothing waits
  huge,       // what is read from now on it keeps in pieces of 2 MiB: touched later, they take a 500th of the
              // faults
};

// For the pages that hold these bytes. Advice: what the kernel does not take is no error.
void advise(ByteSpan mapped, Advice advice);

// Fills the pages that hold these bytes: the file's are read, nothing is copied. False where the kernel
// cannot (before 5.14), and where one of them cannot be read: it does not say why.
bool populate(ByteSpan mapped);

// Keeps the pages that hold these bytes in memory, as they come there, as long as they are mapped. Throws
// FileError, under that name: the system allows each process so much (RLIMIT_MEMLOCK).
void lock(ByteSpan mapped, const std::string& name);

}  // namespace zerocopy
