// Maps a file. A mapping lives as long as a Region shares it, and is freed without Python: any
// thread may free a tensor at any time, even after the interpreter has ended.
#pragma once

#include <memory>

#include "io/file.h"
#include "memory/region.h"

namespace zerocopy {

// The mode letters of numpy.
enum class Mode : std::uint8_t {
  copy_on_write,  // "c"   writes stay in this process
  read_only,      // "r"   writes fault
  shared,         // "r+"  writes reach the file
};

// Maps an extent of the file. Private mappings use MAP_NORESERVE. Without it the kernel refuses a
// writable mapping larger than memory even if nothing is written. Throws FormatError when the
// extent exceeds the file, and FileError when the system refuses.
Region map_extent(const File& file, Extent extent, Mode mode);

// Maps the file from `offset` to its end.
Region map_file(const File& file, std::uint64_t offset, Mode mode);

// Maps parts of a file on request.
class Mapper {
 public:
  Mapper() = default;
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;
  virtual ~Mapper() = default;

  virtual Region region(Extent extent) = 0;

  // Returns the same bytes, on separate pages if possible, so advice about them does not affect
  // other bytes.
  virtual Region region_apart(Extent extent) { return region(extent); }

  // Returns whether the bytes at an offset have this alignment in memory.
  virtual bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const = 0;
};

// A file mapped as a whole, or a buffer.
class WholeMapper final : public Mapper {
 public:
  // Returns null for an empty region.
  static std::shared_ptr<Mapper> of(Region whole);

  explicit WholeMapper(Region whole) : whole_(std::move(whole)) {}

  Region region(Extent extent) override { return whole_.slice(extent); }
  bool is_aligned(std::uint64_t offset, std::uint64_t alignment) const override;

 private:
  Region whole_;
};

// The expected access pattern of mapped pages.
enum class Advice : std::uint8_t {
  together,   // the kernel reads megabytes around each touched page
  scattered,  // the kernel reads only the touched pages
  soon,       // the kernel starts to read all pages now; the call does not wait
  huge,       // the kernel caches later reads in pieces of 2 MiB, with a 500th of the page faults
};

// Advises the kernel about the pages that hold these bytes. Ignores a refusal.
void advise(ByteSpan mapped, Advice advice);

// Reads the pages of these bytes from the file without copying. Returns false if the kernel cannot
// (before 5.14), or if a page cannot be read. The kernel does not tell the reason.
bool populate(ByteSpan mapped);

// Locks the pages of these bytes in memory as they are read, until they are unmapped. The system
// limits locked memory per process (RLIMIT_MEMLOCK). Throws FileError with `name`.
void lock(ByteSpan mapped, const std::string& name);

}  // namespace zerocopy
