#include "io/lease.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace zerocopy {
namespace {

class Leaseholder final : public Owner {
 public:
  Leaseholder(OwnerRef bytes, std::shared_ptr<const Lease> lease) noexcept
      : lease_(std::move(lease)), bytes_(std::move(bytes)) {}

 private:
  std::shared_ptr<const Lease> lease_;
  OwnerRef bytes_;  // destroyed first, so the bytes are unmapped when the lease ends
};

}  // namespace

Lease::Lease(int descriptor) : descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) throw FileError(errno, "lease descriptor");
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

// Programs close descriptors that they did not open, as daemons do, and get their numbers for files of
// their own.
Lease::~Lease() {
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    ::close(descriptor_);
  }
}

Region leased(const Region& region, std::shared_ptr<const Lease> lease) {
  return {region.data(), region.size(), OwnerRef(new Leaseholder(region.owner(), std::move(lease)))};
}

}  // namespace zerocopy
