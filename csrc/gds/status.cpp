#include "gds/status.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace zerocopy {
namespace {

struct Known {
  int code;
  const char* name;
  bool refusal;
};

constexpr std::array kKnown = std::to_array<Known>({
    {5001, "CU_FILE_DRIVER_NOT_INITIALIZED", true},
    {5002, "CU_FILE_DRIVER_INVALID_PROPS", true},
    {5003, "CU_FILE_DRIVER_UNSUPPORTED_LIMIT", true},
    {5004, "CU_FILE_DRIVER_VERSION_MISMATCH", true},
    {5005, "CU_FILE_DRIVER_VERSION_READ_ERROR", true},
    {5006, "CU_FILE_DRIVER_CLOSING", true},
    {5007, "CU_FILE_PLATFORM_NOT_SUPPORTED", true},
    {5008, "CU_FILE_IO_NOT_SUPPORTED", true},
    {5009, "CU_FILE_DEVICE_NOT_SUPPORTED", true},
    {5010, "CU_FILE_NVFS_DRIVER_ERROR", false},
    {5011, "CU_FILE_CUDA_DRIVER_ERROR", false},
    {5012, "CU_FILE_CUDA_POINTER_INVALID", false},
    {5013, "CU_FILE_CUDA_MEMORY_TYPE_INVALID", true},
    {5014, "CU_FILE_CUDA_POINTER_RANGE_ERROR", false},
    {5015, "CU_FILE_CUDA_CONTEXT_MISMATCH", false},
    {5016, "CU_FILE_INVALID_MAPPING_SIZE", true},
    {5017, "CU_FILE_INVALID_MAPPING_RANGE", false},
    {5018, "CU_FILE_INVALID_FILE_TYPE", true},
    {5019, "CU_FILE_INVALID_FILE_OPEN_FLAG", true},
    {5020, "CU_FILE_DIO_NOT_SET", true},
    {5022, "CU_FILE_INVALID_VALUE", false},
    {5023, "CU_FILE_MEMORY_ALREADY_REGISTERED", false},
    {5024, "CU_FILE_MEMORY_NOT_REGISTERED", false},
    {5025, "CU_FILE_PERMISSION_DENIED", true},
    {5026, "CU_FILE_DRIVER_ALREADY_OPEN", false},
    {5027, "CU_FILE_HANDLE_NOT_REGISTERED", false},
    {5028, "CU_FILE_HANDLE_ALREADY_REGISTERED", false},
    {5029, "CU_FILE_DEVICE_NOT_FOUND", true},
    {5030, "CU_FILE_INTERNAL_ERROR", false},
    {5031, "CU_FILE_GETNEWFD_FAILED", false},
    {5033, "CU_FILE_NVFS_SETUP_ERROR", true},
    {5034, "CU_FILE_IO_DISABLED", true},
    {5035, "CU_FILE_BATCH_SUBMIT_FAILED", false},
    {5036, "CU_FILE_GPU_MEMORY_PINNING_FAILED", true},
    {5037, "CU_FILE_BATCH_FULL", false},
    {5038, "CU_FILE_ASYNC_NOT_SUPPORTED", true},
    {5043, "CU_FILE_NOMEM_ERROR", false},
    {5044, "CU_FILE_IO_ERROR", false},
    {5045, "CU_FILE_INTERNAL_BUF_REGISTER_ERROR", true},
    {5049, "CU_FILE_BATCH_NOCOMPAT_ERROR", true},
});

const Known* known(int code) {
  const auto* const found = std::ranges::find(kKnown, code, &Known::code);
  return found == kKnown.end() ? nullptr : found;
}

[[noreturn]] void fail(int code, const std::string& message, const std::string& name) {
  if (is_refusal(code)) throw UnsupportedError(message);
  throw FileError(EIO, name, message);
}

}  // namespace

std::string name_of_code(int code) {
  const Known* const found = known(code);
  return (found == nullptr ? "cuFile's error" : found->name) + (" (" + std::to_string(code) + ")");
}

bool is_refusal(int code) {
  const Known* const found = known(code);
  return found != nullptr && found->refusal;
}

void require_success(abi::Status status, const char* call, const std::string& name) {
  if (status.code == 0) return;
  std::string message = std::string(call) + ": " + name_of_code(status.code);
  if (status.cuda != 0) message += ", CUDA error " + std::to_string(status.cuda);
  fail(status.code, message, name);
}

std::size_t require_bytes(ssize_t result, const char* call, const std::string& name) {
  if (result >= 0) return static_cast<std::size_t>(result);
  if (result == -1) throw FileError(errno == 0 ? EIO : errno, name);
  const auto code = static_cast<int>(-result);
  fail(code, std::string(call) + ": " + name_of_code(code), name);
}

void require_cuda(abi::CudaStatus status, const char* call, const std::string& name) {
  if (status == 0) return;
  throw FileError(status == 2 ? ENOMEM : EIO, name,
                  std::string(call) + ": CUDA error " + std::to_string(status));
}

}  // namespace zerocopy
