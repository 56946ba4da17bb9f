// What cuFile and the CUDA driver answer, as exceptions.
#pragma once

#include <sys/types.h>

#include <string>

#include "gds/abi.h"
#include "memory/errors.h"

namespace zerocopy {

// The name of a CUfileOpError with its number, "CU_FILE_IO_NOT_SUPPORTED (5008)".
std::string name_of_code(int code);

// Whether a code says that this cannot be done here (on that file, device or platform), rather than that it
// failed.
bool is_refusal(int code);

// Throw for anything but success: UnsupportedError for a refusal, else FileError with EIO under the file's
// name.
void require_success(abi::Status status, const char* call, const std::string& name);
// Of cuFileRead and its kin: the bytes that were moved. -1 is the system's own error, by errno.
std::size_t require_bytes(ssize_t result, const char* call, const std::string& name);
void require_cuda(abi::CudaStatus status, const char* call, const std::string& name);

}  // namespace zerocopy
