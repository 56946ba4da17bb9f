// Turns the errors of cuFile and the CUDA driver into exceptions.
#pragma once

#include <sys/types.h>

#include <string>

#include "gds/abi.h"
#include "memory/errors.h"

namespace zerocopy {

// Returns the name of a CUfileOpError with its number, "CU_FILE_IO_NOT_SUPPORTED (5008)".
std::string name_of_code(int code);

// Returns whether a code means "unsupported here" (for the file, device or platform) and not
// "failed".
bool is_refusal(int code);

// Throws for any error: UnsupportedError for a refusal, else FileError (EIO) with `name`.
void require_success(abi::Status status, const char* call, const std::string& name);
// Checks the result of cuFileRead and similar calls. Returns the bytes moved. -1 means errno.
std::size_t require_bytes(ssize_t result, const char* call, const std::string& name);
void require_cuda(abi::CudaStatus status, const char* call, const std::string& name);

}  // namespace zerocopy
