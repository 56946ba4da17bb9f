// An open cuFile driver: its properties, the buffers registered with it, and the bounce buffers for
// transfers that GPUDirect Storage cannot make directly.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gds/library.h"
#include "memory/bytes.h"

namespace zerocopy {

// Memory of a device, or a test's stand-in. The host never accesses it through this address.
struct DeviceMemory {
  std::byte* address = nullptr;
  std::uint64_t size = 0;

  DeviceMemory from(std::uint64_t offset) const { return {address + offset, size - offset}; }
  DeviceMemory first(std::uint64_t length) const { return {address, length}; }
};

// An address as cuFile needs it: a registered buffer, and the offset in it.
struct RegisteredAddress {
  std::byte* base;
  off_t offset;
};

class Driver : public std::enable_shared_from_this<Driver> {
 public:
  // `kernel_driver` is a path that the kernel module creates. Throws UnsupportedError, with the
  // reason, if the path is missing, CUDA has no device, or cuFile cannot be opened.
  static std::shared_ptr<Driver> open(std::shared_ptr<const Library> library,
                                      const std::string& kernel_driver);

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver();

  const abi::Functions& call() const noexcept { return library_->call(); }
  const std::string& path() const noexcept { return library_->path(); }
  // Returns false in a forked copy of the process, where no cuFile function may be called, not even
  // to close it.
  bool is_same_process() const noexcept;
  int version() const noexcept { return version_; }  // 1140 is 1.14; 0 if the library does not tell
  const abi::Properties& properties() const noexcept { return properties_; }
  bool has_batches() const noexcept {
    return library_->has_batches() && (properties_.features & abi::kBatches) != 0;
  }
  bool has_streams() const noexcept {
    return library_->has_streams() && (properties_.features & abi::kStreams) != 0;
  }

  // Registration takes more than a millisecond, so buffers in frequent use are registered once.
  // Registrations of the same buffer are counted, and the last deregister undoes them. Throws
  // UnsupportedError, FileError, or FormatError for an unregistered buffer.
  void register_buffer(DeviceMemory memory);
  void deregister_buffer(DeviceMemory memory);
  std::size_t registered() const;
  RegisteredAddress registered_address(DeviceMemory memory) const;

  // Copies between device and host, or within a device. The copy is complete on return.
  void copy(DeviceMemory to, ByteSpan from) const;
  void copy(std::byte* to, DeviceMemory from) const;
  void copy(DeviceMemory to, DeviceMemory from) const;

  // A page-aligned buffer of kBounceSize bytes on the current device, registered if possible. The
  // driver reuses it afterwards.
  static constexpr std::uint64_t kBounceSize = std::uint64_t{4} << 20U;
  class BounceBuffer {
   public:
    explicit BounceBuffer(Driver& driver);
    BounceBuffer(const BounceBuffer&) = delete;
    BounceBuffer& operator=(const BounceBuffer&) = delete;
    ~BounceBuffer();

    DeviceMemory memory() const noexcept { return memory_; }

   private:
    std::shared_ptr<Driver> driver_;
    abi::Context context_ = nullptr;
    DeviceMemory memory_;
  };

 private:
  struct Registered {
    std::uint64_t size;
    unsigned times;
    bool is_owner;  // false if other code of this process registered it
  };
  struct Allocated {
    abi::Context context = nullptr;
    abi::DevicePointer begin = 0;
    DeviceMemory memory;
  };

  explicit Driver(std::shared_ptr<const Library> library);

  DeviceMemory lend(abi::Context context);
  void copy_raw(const void* to, const void* from, std::uint64_t size) const;

  std::shared_ptr<const Library> library_;
  pid_t process_;
  bool open_ = false;
  int version_ = 0;
  abi::Properties properties_{};
  mutable std::mutex mutex_;
  std::map<const std::byte*, Registered> buffers_;
  std::vector<Allocated> bounce_buffers_;                            // all of them
  std::vector<std::pair<abi::Context, DeviceMemory>> free_buffers_;  // those that are free
};

}  // namespace zerocopy
