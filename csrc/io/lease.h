// A descriptor that is closed with the last byte it goes with.
//
// Whoever lent the bytes holds the other end of a pipe, and so is told when nobody has them any more: by the
// kernel, also where a process was killed, and not before the children that it forked are done with them.
#pragma once

#include <memory>

#include "memory/region.h"

namespace zerocopy {

class Lease {
 public:
  // Shares a descriptor that the caller keeps. Throws FileError.
  explicit Lease(int descriptor);
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

 private:
  int descriptor_;
};

// The same bytes, which keep the lease too.
Region leased(const Region& region, std::shared_ptr<const Lease> lease);

}  // namespace zerocopy
