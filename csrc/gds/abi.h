// The binary interface of cuFile and the CUDA driver, declared without CUDA's headers. Sizes and
// offsets match cuFile 1.14 to 1.20 on x86-64 and aarch64: no release between them moved a field.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

namespace zerocopy::abi {

using CudaStatus = int;               // CUresult; 0 is success
using DevicePointer = std::uint64_t;  // CUdeviceptr
using Stream = void*;                 // CUstream; null is the device's default stream
using Context = void*;                // CUcontext
using FileHandle = void*;             // CUfileHandle_t
using BatchHandle = void*;            // CUfileBatchHandle_t

// CUfileError_t
struct Status {
  int code;  // CUfileOpError: 0, or 5001 and more
  int cuda;  // valid if code is 5011
};
static_assert(sizeof(Status) == 8);

// CUfileDescr_t
struct Descriptor {
  int type;  // kLinuxDescriptor
  union {
    int descriptor;
    void* handle;
  } file;
  // CUfileFSOps_t of a file system in user space; null for kernel file systems
  const void* operations;
};
static_assert(sizeof(Descriptor) == 24 && offsetof(Descriptor, file) == 8 &&
              offsetof(Descriptor, operations) == 16);

constexpr int kLinuxDescriptor = 1;

// CUfileDrvProps_t
struct Properties {
  struct {
    unsigned major;  // of the kernel module nvidia-fs; 0.0 if it is not loaded
    unsigned minor;
    std::size_t poll_threshold;      // KiB
    std::size_t max_direct_io_size;  // KiB
    unsigned status;                 // a bit for each kind of storage: kNvme, ...
    unsigned control;                // kAllowsCompatibility, ...
  } nvfs;
  unsigned features;                // kBatches, ...
  unsigned max_device_cache_size;   // KiB
  unsigned per_buffer_cache_size;   // KiB
  unsigned max_pinned_memory_size;  // KiB
  unsigned max_batch_size;          // requests
  unsigned max_batch_milliseconds;
};
static_assert(sizeof(Properties) == 56 && offsetof(Properties, nvfs.poll_threshold) == 8 &&
              offsetof(Properties, nvfs.max_direct_io_size) == 16 &&
              offsetof(Properties, nvfs.status) == 24 && offsetof(Properties, nvfs.control) == 28 &&
              offsetof(Properties, features) == 32 && offsetof(Properties, max_device_cache_size) == 36 &&
              offsetof(Properties, per_buffer_cache_size) == 40 &&
              offsetof(Properties, max_pinned_memory_size) == 44 &&
              offsetof(Properties, max_batch_size) == 48 &&
              offsetof(Properties, max_batch_milliseconds) == 52);

// Bits of Properties::nvfs.control and ::features.
constexpr unsigned kAllowsCompatibility = 1U << 1U;
constexpr unsigned kBatches = 1U << 1U;
constexpr unsigned kStreams = 1U << 2U;
constexpr unsigned kPeerToPeer = 1U << 4U;
// A bit of Properties::nvfs.status, which older releases set in place of kPeerToPeer.
constexpr unsigned kNvmePeerToPeer = 1U << 11U;

// CUfileIOParams_t
struct Request {
  int mode;  // kBatchMode
  struct {
    void* base;
    off_t file_offset;
    off_t base_offset;
    std::size_t size;
  } batch;
  FileHandle file;
  int operation;  // 0 reads, 1 writes
  void* cookie;
};
static_assert(sizeof(Request) == 64 && offsetof(Request, batch.base) == 8 &&
              offsetof(Request, batch.file_offset) == 16 && offsetof(Request, batch.base_offset) == 24 &&
              offsetof(Request, batch.size) == 32 && offsetof(Request, file) == 40 &&
              offsetof(Request, operation) == 48 && offsetof(Request, cookie) == 56);

constexpr int kBatchMode = 1;
constexpr int kComplete = 0x10;  // CUfileStatus_t of a finished request

// CUfileIOEvents_t
struct Event {
  void* cookie;
  int status;
  std::size_t result;  // bytes, or a negative error
};
static_assert(sizeof(Event) == 24 && offsetof(Event, status) == 8 && offsetof(Event, result) == 16);

// The functions that zerocopy calls, by their exported names. Those marked with an asterisk are
// null if the library is too old.
struct Functions {
  // libcuda
  CudaStatus (*cuInit)(unsigned flags);
  CudaStatus (*cuDeviceGetCount)(int* count);
  CudaStatus (*cuCtxGetCurrent)(Context* context);
  CudaStatus (*cuMemAlloc_v2)(DevicePointer* pointer, std::size_t size);
  CudaStatus (*cuMemFree_v2)(DevicePointer pointer);
  CudaStatus (*cuMemcpy)(DevicePointer to, DevicePointer from, std::size_t size);
  CudaStatus (*cuStreamSynchronize)(Stream stream);
  // libcufile
  Status (*cuFileDriverOpen)();
  Status (*cuFileDriverClose)();
  Status (*cuFileDriverGetProperties)(Properties* properties);
  Status (*cuFileGetVersion)(int* version);  // *
  Status (*cuFileHandleRegister)(FileHandle* file, Descriptor* descriptor);
  void (*cuFileHandleDeregister)(FileHandle file);
  Status (*cuFileBufRegister)(const void* base, std::size_t size, int flags);
  Status (*cuFileBufDeregister)(const void* base);
  ssize_t (*cuFileRead)(FileHandle file, void* base, std::size_t size, off_t file_offset, off_t base_offset);
  ssize_t (*cuFileWrite)(FileHandle file, const void* base, std::size_t size, off_t file_offset,
                         off_t base_offset);
  Status (*cuFileBatchIOSetUp)(BatchHandle* batch, unsigned requests);                                  // *
  Status (*cuFileBatchIOSubmit)(BatchHandle batch, unsigned count, Request* requests, unsigned flags);  // *
  Status (*cuFileBatchIOGetStatus)(BatchHandle batch, unsigned least, unsigned* count, Event* events,
                                   timespec* timeout);  // *
  Status (*cuFileBatchIOCancel)(BatchHandle batch);     // *
  void (*cuFileBatchIODestroy)(BatchHandle batch);      // *
  Status (*cuFileReadAsync)(FileHandle file, void* base, std::size_t* size, off_t* file_offset,
                            off_t* base_offset, ssize_t* done, Stream stream);  // *
};

}  // namespace zerocopy::abi
