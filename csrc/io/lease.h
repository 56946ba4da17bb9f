// A descriptor that is closed together with the last of its bytes.
//
// The lender of the bytes holds the other end of a pipe. When the last user of the bytes is gone,
// the kernel closes the pipe, even if the process was killed. Forked children count as users.
#pragma once

#include <sys/types.h>

#include <memory>

#include "memory/region.h"

namespace zerocopy {

class Lease {
 public:
  // Duplicates a descriptor that the caller keeps. Throws FileError.
  explicit Lease(int descriptor);
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

 private:
  int descriptor_;
  dev_t device_;
  ino_t inode_;
};

// Returns the same bytes with an owner that also holds the lease.
Region leased(const Region& region, std::shared_ptr<const Lease> lease);

}  // namespace zerocopy
