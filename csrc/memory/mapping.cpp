#include "memory/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace zerocopy {
namespace {

struct Protection {
  int access;
  int flags;
};

Protection protection_of(Mode mode) {
  switch (mode) {
    case Mode::read_only:
      return {PROT_READ, MAP_PRIVATE | MAP_NORESERVE};
    case Mode::shared:
      return {PROT_READ | PROT_WRITE, MAP_SHARED};
    case Mode::copy_on_write:
      break;
  }
  return {PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE};
}

class Mapping final : public Owner {
 public:
  Mapping(void* base, std::size_t length) noexcept : base_(base), length_(length) {}
  ~Mapping() override { ::munmap(base_, length_); }

 private:
  void* base_;
  std::size_t length_;
};

}  // namespace

Region map_file(const File& file, std::uint64_t offset, Mode mode) {
  const Extent wanted{offset, file.size() - offset};
  if (!wanted.fits(file.size())) throw FormatError("file ends before " + hex(offset));
  if (wanted.size == 0) return {};
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t lead = offset % page;  // mmap starts at page borders only
  const std::size_t length = wanted.size + lead;
  const auto [access, flags] = protection_of(mode);
  void* base = ::mmap(nullptr, length, access, flags, file.descriptor(), static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) throw FileError(errno, file.path());
  return {static_cast<std::byte*>(base) + lead, static_cast<std::size_t>(wanted.size),
          Share(new Mapping(base, length))};
}

}  // namespace zerocopy
