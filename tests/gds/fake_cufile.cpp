// A libcufile and a libcuda in one, over ordinary memory: the same names and signatures, and the rules that
// GPUDirect Storage has, enforced. It counts what is open, so a test sees what was left behind, and fails
// where it is told to.
//
// fake_set(name, value) sets a number that one of the functions below looks at, fake_get(name) returns one or
// a count, fake_reset() makes all as it was.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gds/abi.h"

using namespace zerocopy::abi;  // NOLINT(google-build-using-namespace): the fake implements this interface

namespace {

constexpr std::size_t kBlock = 4096;

struct Later {
  FileHandle file;
  void* base;
  std::size_t* size;
  off_t* file_offset;
  off_t* base_offset;
  ssize_t* done;
  Stream stream;
};

struct FakeCufile {
  std::mutex mutex;
  std::map<std::string, long> numbers;
  std::map<FileHandle, int> files;
  std::map<const void*, std::size_t> buffers;
  std::map<BatchHandle, std::pair<unsigned, std::vector<Request>>> batches;
  std::vector<Later> later;
  std::uintptr_t last_handle = 0;

  long& operator[](const std::string& name) { return numbers[name]; }
  long get(const std::string& name, long otherwise) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? otherwise : found->second;
  }
  bool open() { return numbers["drivers"] > 0; }
  Status broken(int code) {
    ++numbers["violations"];
    return {code, 0};
  }
  void* handle() { return reinterpret_cast<void*>(++last_handle); }
};

FakeCufile& fake() {
  static auto* const made = new FakeCufile();  // what is called while the process ends finds it
  return *made;
}

// Does what cuFileRead and its variants do; `batched` for a batch or a stream.
ssize_t move(FakeCufile& t, bool write, FileHandle file, std::byte* base, std::size_t size, off_t at,
             off_t base_offset) {
  ++t[write ? "writes" : "reads"];
  if (!t.open()) return -t.broken(5001).code;
  const auto known = t.files.find(file);
  if (known == t.files.end()) return -t.broken(5027).code;
  std::byte* const memory = base + base_offset;
  const bool aligned = static_cast<std::size_t>(at) % kBlock == 0 && size % kBlock == 0 && size != 0 &&
                       reinterpret_cast<std::uintptr_t>(memory) % kBlock == 0;
  if (!aligned && t.get("strict", 1) != 0) return -t.broken(5022).code;
  const auto buffer = t.buffers.find(base);
  if (buffer != t.buffers.end()) {
    ++t["registered_moves"];
    if (static_cast<std::size_t>(base_offset) + size > buffer->second) return -t.broken(5017).code;
  } else if (base_offset != 0) {
    return -t.broken(5024).code;
  }
  if (t.get("fail_after", -1) == 0) {
    errno = static_cast<int>(t.get("fail_errno", EIO));
    return -t.get("fail_code", 1);
  }
  if (t.numbers.count("fail_after") != 0) --t["fail_after"];
  // O_DIRECT takes whole blocks: more is moved than said.
  const auto said = std::min(size, static_cast<std::size_t>(t.get("most", 1L << 40)));
  size = std::min(size, (said + kBlock - 1) / kBlock * kBlock);
  t[write ? "bytes_written" : "bytes_read"] += static_cast<long>(size);
  const ssize_t moved =
      write ? ::pwrite(known->second, memory, size, at) : ::pread(known->second, memory, size, at);
  return std::min(moved, static_cast<ssize_t>(said));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void fake_reset() {
  const std::lock_guard lock(fake().mutex);
  fake().numbers.clear();
  fake().files.clear();
  fake().buffers.clear();
  fake().batches.clear();
  fake().later.clear();
}

void fake_set(const char* name, long value) {
  const std::lock_guard lock(fake().mutex);
  fake()[name] = value;
}

long fake_get(const char* name) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  const std::string wanted = name;
  if (wanted == "files") return static_cast<long>(t.files.size());
  if (wanted == "buffers") return static_cast<long>(t.buffers.size());
  if (wanted == "batches") return static_cast<long>(t.batches.size());
  if (wanted == "later") return static_cast<long>(t.later.size());
  return t[wanted];
}

// ------------------------------------------------------------------------------------------------------
// libcuda

CudaStatus cuInit(unsigned) { return static_cast<CudaStatus>(fake().get("init", 0)); }

CudaStatus cuDeviceGetCount(int* count) {
  *count = static_cast<int>(fake().get("devices", 1));
  return 0;
}

CudaStatus cuCtxGetCurrent(Context* context) {
  *context = reinterpret_cast<void*>(fake().get("context", 1));
  return 0;
}

CudaStatus cuMemAlloc_v2(DevicePointer* pointer, std::size_t size) {
  const std::lock_guard lock(fake().mutex);
  if (fake()["alloc"] != 0) return static_cast<CudaStatus>(fake()["alloc"]);
  void* const made = std::malloc(size);
  if (made == nullptr) return 2;
  ++fake()["allocations"];
  *pointer = reinterpret_cast<DevicePointer>(made);
  return 0;
}

CudaStatus cuMemFree_v2(DevicePointer pointer) {
  const std::lock_guard lock(fake().mutex);
  --fake()["allocations"];
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}

CudaStatus cuMemcpy(DevicePointer to, DevicePointer from, std::size_t size) {
  const std::lock_guard lock(fake().mutex);
  ++fake()["copies"];
  if (fake()["copy"] != 0) return static_cast<CudaStatus>(fake()["copy"]);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
  return 0;
}

CudaStatus cuStreamSynchronize(Stream stream) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  std::vector<Later> rest;
  for (const Later& one : t.later) {
    if (one.stream != stream) {
      rest.push_back(one);
      continue;
    }
    *one.done = t["async_done"] != 0 ? t["async_done"]
                                     : move(t, false, one.file, static_cast<std::byte*>(one.base), *one.size,
                                            *one.file_offset, *one.base_offset);
  }
  t.later = std::move(rest);
  return 0;
}

// ----------------------------------------------------------------------------------------------------
// libcufile

Status cuFileDriverOpen() {
  const std::lock_guard lock(fake().mutex);
  if (const long code = fake().get("driver_open", 0); code != 0) {
    return {static_cast<int>(code), static_cast<int>(fake().get("driver_open_cuda", 0))};
  }
  ++fake()["drivers"];
  return {0, 0};
}

Status cuFileDriverClose_v2() {
  const std::lock_guard lock(fake().mutex);
  if (!fake().open()) return fake().broken(5001);
  --fake()["drivers"];
  return {0, 0};
}

Status cuFileDriverGetProperties(Properties* properties) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (!t.open()) return t.broken(5001);
  if (t["properties"] != 0) return {static_cast<int>(t["properties"]), 0};
  *properties = {};
  properties->nvfs.major = static_cast<unsigned>(t.get("nvfs", 2));
  properties->nvfs.minor = properties->nvfs.major == 0 ? 0 : 24;
  properties->nvfs.status = static_cast<unsigned>(t.get("status", 0x7FF));
  properties->nvfs.control = static_cast<unsigned>(t.get("control", kAllowsCompatibility));
  properties->features = static_cast<unsigned>(t.get("features", kBatches | kStreams));
  properties->max_batch_size = static_cast<unsigned>(t.get("max_batch", 128));
  return {0, 0};
}

Status cuFileGetVersion(int* version) {
  *version = 1140;
  return {0, 0};
}

Status cuFileHandleRegister(FileHandle* file, Descriptor* descriptor) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (!t.open()) return t.broken(5001);
  if (t["handle_register"] != 0) return {static_cast<int>(t["handle_register"]), 0};
  if (descriptor->type != kLinuxDescriptor || descriptor->operations != nullptr) return t.broken(5018);
  const int flags = ::fcntl(descriptor->file.descriptor, F_GETFL);
  if (flags < 0) return t.broken(5018);
  if ((flags & O_DIRECT) == 0) return t.broken(5020);
  *file = t.handle();
  t.files[*file] = descriptor->file.descriptor;
  return {0, 0};
}

void cuFileHandleDeregister(FileHandle file) {
  const std::lock_guard lock(fake().mutex);
  if (fake().files.erase(file) == 0) ++fake()["violations"];
}

Status cuFileBufRegister(const void* base, std::size_t size, int flags) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (!t.open()) return t.broken(5001);
  if (t["buf_register"] != 0) return {static_cast<int>(t["buf_register"]), 0};
  if (size == 0 || flags != 0) return t.broken(5022);
  ++t["registrations"];
  return t.buffers.emplace(base, size).second ? Status{0, 0} : t.broken(5023);
}

Status cuFileBufDeregister(const void* base) {
  const std::lock_guard lock(fake().mutex);
  return fake().buffers.erase(base) == 0 ? fake().broken(5024) : Status{0, 0};
}

ssize_t cuFileRead(FileHandle file, void* base, std::size_t size, off_t at, off_t base_offset) {
  const std::lock_guard lock(fake().mutex);
  return move(fake(), false, file, static_cast<std::byte*>(base), size, at, base_offset);
}

ssize_t cuFileWrite(FileHandle file, const void* base, std::size_t size, off_t at, off_t base_offset) {
  const std::lock_guard lock(fake().mutex);
  auto* const memory = const_cast<std::byte*>(static_cast<const std::byte*>(base));
  return move(fake(), true, file, memory, size, at, base_offset);
}

Status cuFileReadAsync(FileHandle file, void* base, std::size_t* size, off_t* file_offset, off_t* base_offset,
                       ssize_t* done, Stream stream) {
  const std::lock_guard lock(fake().mutex);
  if (fake()["async"] != 0) return {static_cast<int>(fake()["async"]), 0};
  ++fake()["async_reads"];
  fake().later.push_back({file, base, size, file_offset, base_offset, done, stream});
  return {0, 0};
}

Status cuFileBatchIOSetUp(BatchHandle* batch, unsigned requests) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (t["batch_setup"] != 0) return {static_cast<int>(t["batch_setup"]), 0};
  if (requests > static_cast<unsigned>(t.get("max_batch", 128))) return t.broken(5037);
  *batch = t.handle();
  t.batches[*batch].first = requests;
  return {0, 0};
}

Status cuFileBatchIOSubmit(BatchHandle batch, unsigned count, Request* requests, unsigned) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (t["batch_submit"] != 0) return {static_cast<int>(t["batch_submit"]), 0};
  auto& [room, queued] = t.batches.at(batch);
  if (queued.size() + count > room) return t.broken(5037);
  for (unsigned i = 0; i < count; ++i) {
    if (requests[i].mode != kBatchMode || requests[i].operation != 0) return t.broken(5022);
    queued.push_back(requests[i]);
  }
  t["batched"] += count;
  return {0, 0};
}

// The last first, three at a time.
Status cuFileBatchIOGetStatus(BatchHandle batch, unsigned, unsigned* count, Event* events, timespec*) {
  const std::lock_guard lock(fake().mutex);
  FakeCufile& t = fake();
  if (t["batch_status"] != 0) return {static_cast<int>(t["batch_status"]), 0};
  auto& queued = t.batches.at(batch).second;
  unsigned given = 0;
  while (t["batch_stalls"] == 0 && given < std::min(*count, 3U) && !queued.empty()) {
    const Request request = queued.back();
    queued.pop_back();
    const ssize_t done = move(t, false, request.file, static_cast<std::byte*>(request.batch.base),
                              request.batch.size, request.batch.file_offset, request.batch.base_offset);
    events[given++] = {request.cookie, done < 0 ? 0x40 : kComplete, static_cast<std::size_t>(done)};
  }
  *count = given;
  return {0, 0};
}

Status cuFileBatchIOCancel(BatchHandle batch) {
  const std::lock_guard lock(fake().mutex);
  ++fake()["cancelled"];
  fake().batches.at(batch).second.clear();
  return {0, 0};
}

void cuFileBatchIODestroy(BatchHandle batch) {
  const std::lock_guard lock(fake().mutex);
  const auto found = fake().batches.find(batch);
  if (found == fake().batches.end() || !found->second.second.empty()) ++fake()["violations"];
  fake().batches.erase(batch);
}

}  // extern "C"
