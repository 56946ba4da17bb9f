#include "gds/driver.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "gds/status.h"
#include "io/direct.h"

namespace zerocopy {
namespace {

constexpr int kAlreadyOpen = 5026;  // by other code of this process, such as torch
constexpr int kAlreadyRegistered = 5023;

// Converts a device address to CUDA's integer type.
abi::DevicePointer pointer(const void* address) {
  // NOLINTNEXTLINE(*-reinterpret-cast)
  return reinterpret_cast<abi::DevicePointer>(address);
}

std::byte* address(abi::DevicePointer pointer) {
  // NOLINTNEXTLINE(*-reinterpret-cast, *-no-int-to-ptr)
  return reinterpret_cast<std::byte*>(pointer);
}

}  // namespace

Driver::Driver(std::shared_ptr<const Library> library) : library_(std::move(library)), process_(::getpid()) {}

bool Driver::is_same_process() const noexcept { return process_ == ::getpid(); }

std::shared_ptr<Driver> Driver::open(std::shared_ptr<const Library> library,
                                     const std::string& kernel_driver) {
  std::shared_ptr<Driver> made(new Driver(std::move(library)));
  const abi::Functions& call = made->call();
  if (const abi::CudaStatus status = call.cuInit(0); status != 0) {
    throw UnsupportedError("cuInit: CUDA error " + std::to_string(status));
  }
  int devices = 0;
  if (call.cuDeviceGetCount(&devices) != 0 || devices == 0) throw UnsupportedError("CUDA has no device");
  if (call.cuFileGetVersion != nullptr) call.cuFileGetVersion(&made->version_);
  if (::access(kernel_driver.c_str(), F_OK) != 0) {
    throw UnsupportedError(kernel_driver +
                           " is missing: load the kernel module nvidia-fs, without which cuFile hangs");
  }
  const abi::Status status = call.cuFileDriverOpen();
  if (status.code != kAlreadyOpen) {
    if (status.code != 0) {
      throw UnsupportedError("cuFileDriverOpen: " + name_of_code(status.code) +
                             (status.cuda != 0 ? ", CUDA error " + std::to_string(status.cuda) : ""));
    }
    made->open_ = true;
  }
  if (const abi::Status asked = call.cuFileDriverGetProperties(&made->properties_); asked.code != 0) {
    throw UnsupportedError("cuFileDriverGetProperties: " + name_of_code(asked.code));
  }
  return made;
}

Driver::~Driver() {
  if (!is_same_process()) return;
  for (const auto& [base, registered] : buffers_) {
    if (registered.is_owner) call().cuFileBufDeregister(base);
  }
  for (const Allocated& bounce : bounce_buffers_) call().cuMemFree_v2(bounce.begin);
  if (open_) call().cuFileDriverClose();
}

void Driver::register_buffer(DeviceMemory memory) {
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(memory.address);
  if (found != buffers_.end() && found->second.size == memory.size) {
    ++found->second.times;
    return;
  }
  if (found != buffers_.end()) {
    throw UnsupportedError("a buffer of another size is registered at this address: deregister it first");
  }
  const abi::Status status = call().cuFileBufRegister(memory.address, memory.size, 0);
  // Other code, such as torch, registered this buffer, so the driver must not deregister it.
  const bool is_owner = status.code != kAlreadyRegistered;
  if (is_owner) require_success(status, "cuFileBufRegister", path());
  buffers_.emplace(memory.address, Registered{memory.size, 1, is_owner});
}

void Driver::deregister_buffer(DeviceMemory memory) {
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(memory.address);
  if (found == buffers_.end())
    throw std::invalid_argument("the buffer is not registered: call register_buffer first");
  if (--found->second.times != 0) return;
  const bool is_owner = found->second.is_owner;
  buffers_.erase(found);
  if (!is_owner) return;
  require_success(call().cuFileBufDeregister(memory.address), "cuFileBufDeregister", path());
}

std::size_t Driver::registered() const {
  const std::lock_guard lock(mutex_);
  return buffers_.size();
}

RegisteredAddress Driver::registered_address(DeviceMemory memory) const {
  const std::lock_guard lock(mutex_);
  auto behind = buffers_.upper_bound(memory.address);
  if (behind != buffers_.begin()) {
    const auto& [base, registered] = *--behind;
    const auto offset = static_cast<std::uint64_t>(memory.address - base);
    if (registered.is_owner && Extent{offset, memory.size}.fits(registered.size)) {
      return {memory.address - offset, static_cast<off_t>(offset)};
    }
  }
  return {memory.address, 0};
}

// cuMemcpy from pageable memory, and within a device, returns before the copy is complete.
void Driver::copy_raw(const void* to, const void* from, std::uint64_t size) const {
  require_cuda(call().cuMemcpy(pointer(to), pointer(from), size), "cuMemcpy", path());
  require_cuda(call().cuStreamSynchronize(nullptr), "cuStreamSynchronize", path());
}

void Driver::copy(DeviceMemory to, ByteSpan from) const { copy_raw(to.address, from.data(), from.size()); }

void Driver::copy(std::byte* to, DeviceMemory from) const { copy_raw(to, from.address, from.size); }

void Driver::copy(DeviceMemory to, DeviceMemory from) const { copy_raw(to.address, from.address, from.size); }

DeviceMemory Driver::lend(abi::Context context) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(free_buffers_, context, [](const auto& one) { return one.first; });
    if (found != free_buffers_.end()) {
      const DeviceMemory memory = found->second;
      free_buffers_.erase(found);
      return memory;
    }
  }
  abi::DevicePointer begin = 0;
  require_cuda(call().cuMemAlloc_v2(&begin, kBounceSize + kDirectBlock), "cuMemAlloc", path());
  const std::uint64_t lead = (kDirectBlock - begin % kDirectBlock) % kDirectBlock;
  const DeviceMemory memory{address(begin + lead), kBounceSize};
  {
    const std::lock_guard lock(mutex_);
    bounce_buffers_.push_back({context, begin, memory});
  }
  try {
    register_buffer(memory);
  } catch (const Error&) {  // an unregistered buffer works too, with an extra copy
  } catch (const FileError&) {
  }
  return memory;
}

Driver::BounceBuffer::BounceBuffer(Driver& driver) : driver_(driver.shared_from_this()) {
  require_cuda(driver.call().cuCtxGetCurrent(&context_), "cuCtxGetCurrent", driver.path());
  memory_ = driver.lend(context_);
}

Driver::BounceBuffer::~BounceBuffer() {
  const std::lock_guard lock(driver_->mutex_);
  driver_->free_buffers_.emplace_back(context_, memory_);
}

}  // namespace zerocopy
