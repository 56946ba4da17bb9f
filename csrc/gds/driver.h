// cuFile, opened: what it says of itself, the buffers that are registered with it, and the device memory
// through which goes what does not lie as GPUDirect Storage needs it.
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

// Memory of a device, or what stands in for it. Nothing of the host's reads or writes it through this
// address.
struct DeviceMemory {
  std::byte* address = nullptr;
  std::uint64_t size = 0;

  DeviceMemory from(std::uint64_t offset) const { return {address + offset, size - offset}; }
  DeviceMemory first(std::uint64_t length) const { return {address, length}; }
};

// How cuFile is to be told of an address: the buffer that is registered there, and how far behind its
// beginning.
struct BufferPlace {
  std::byte* base;
  off_t offset;
};

class Driver : public std::enable_shared_from_this<Driver> {
 public:
  // `kernel_driver` is a path that the kernel module creates. Throws UnsupportedError, with the reason, if
  // that path is missing, if CUDA has no device, or if cuFile cannot be opened.
  static std::shared_ptr<Driver> open(std::shared_ptr<const Library> library,
                                      const std::string& kernel_driver);

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver();

  const abi::Functions& call() const noexcept { return library_->call(); }
  const std::string& path() const noexcept { return library_->path(); }
  // Whether this is not a copy in a forked process. There cuFile may not be called, not even to close it.
  bool is_ours() const noexcept;
  int version() const noexcept { return version_; }  // 1140 is 1.14; 0 where the library does not say
  const abi::Properties& properties() const noexcept { return properties_; }
  bool has_batches() const noexcept {
    return library_->has_batches() && (properties_.features & abi::kBatches) != 0;
  }
  bool has_streams() const noexcept {
    return library_->has_streams() && (properties_.features & abi::kStreams) != 0;
  }

  // Registering costs a millisecond and more, so what is read into again and again is registered once. Twice
  // the same is once, and is undone by the second deregister. Throws UnsupportedError, FileError; FormatError
  // for what is not registered.
  void register_buffer(DeviceMemory memory);
  void deregister_buffer(DeviceMemory memory);
  std::size_t registered() const;
  BufferPlace place_of(DeviceMemory memory) const;

  // Between a device and the host, or within a device; done when it returns.
  void copy(DeviceMemory to, ByteSpan from) const;
  void copy(std::byte* to, DeviceMemory from) const;
  void copy(DeviceMemory to, DeviceMemory from) const;

  // kBounce bytes of the current device that begin at a page, registered where that is possible. They go back
  // to be lent again.
  static constexpr std::uint64_t kBounce = std::uint64_t{4} << 20U;
  class Bounce {
   public:
    explicit Bounce(Driver& driver);
    Bounce(const Bounce&) = delete;
    Bounce& operator=(const Bounce&) = delete;
    ~Bounce();

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
    bool ours;  // not somebody else's of this process
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
  std::vector<Allocated> bounces_;                             // every one there is
  std::vector<std::pair<abi::Context, DeviceMemory>> unlent_;  // those of them that nobody has
};

}  // namespace zerocopy
