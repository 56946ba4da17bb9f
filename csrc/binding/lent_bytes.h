// Bytes that torch takes over by DLPack, and their owners.
#pragma once

#include <cstdint>

#include "binding/dlpack.h"
#include "bridge/table.h"

namespace zerocopy {

// Holds a reference to an owner until torch calls the deleter, on any thread, perhaps after the
// interpreter has ended. The deleter destroys this object.
class LentBytes {
 public:
  // Takes over the caller's reference to the owner.
  LentBytes(void* data, std::uint64_t size, dlpack::Device device, void* owner,
            const ZerocopyBridgeHost& host);
  LentBytes(const LentBytes&) = delete;
  LentBytes& operator=(const LentBytes&) = delete;
  ~LentBytes();

  dlpack::ManagedTensor* managed() noexcept { return &managed_; }

 private:
  dlpack::ManagedTensor managed_{};
  std::int64_t shape_;
  std::int64_t stride_ = 1;
  void* owner_;
  const ZerocopyBridgeHost& host_;
};

// Returns a new reference to the owner of lent bytes that begin at this address, or null.
void* owner_of_lent_bytes(void* data, const ZerocopyBridgeHost& host);

}  // namespace zerocopy
