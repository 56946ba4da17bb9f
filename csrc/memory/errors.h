// The exceptions that the core throws, and functions that quote file content in messages.
//
//   FormatError       the bytes contradict the format (TruncatedError: the bytes end too early)
//   RefusedError      the safe pickle machine refuses by policy
//   UnsupportedError  the file is legal, but zerocopy does not support it
//   FileError         the operating system refused (errno and path), or the file changed (ESTALE)
//
// Only python/errors.cpp turns these exceptions into Python exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace zerocopy {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class FormatError : public Error {
 public:
  using Error::Error;
};

// The bytes end too early. A caller may retry with more bytes.
class TruncatedError : public FormatError {
 public:
  using FormatError::FormatError;
};

class RefusedError : public Error {
 public:
  using Error::Error;
};

class UnsupportedError : public Error {
 public:
  using Error::Error;
};

class FileError : public std::system_error {
 public:
  FileError(int code, std::string path) : FileError(code, std::move(path), "") {}

  // `reason` replaces the system's message for the code.
  FileError(int code, std::string path, std::string reason)
      : std::system_error(code, std::generic_category(), path),
        path_(std::move(path)),
        reason_(reason.empty() ? this->code().message() : std::move(reason)) {}

  const std::string& path() const noexcept { return path_; }
  const std::string& reason() const noexcept { return reason_; }

 private:
  std::string path_;
  std::string reason_;
};

// Formats an offset for messages: "0x1f40".
std::string hex(std::uint64_t value);

// Quotes file bytes for messages: control and non-ASCII bytes are escaped, and at most 200 bytes
// are shown. So a hostile file can neither fill a log nor send commands to a terminal.
std::string quote(std::string_view text);

}  // namespace zerocopy
