// The exceptions the core throws, and how a message quotes what a file says.
//
//   FormatError       the bytes contradict the format (TruncatedError: they end too early)
//   RefusedError      the safe pickle machine refuses by policy
//   UnsupportedError  legal, but not ours
//   FileError         the operating system refused (errno and path), or the file changed (ESTALE)
//
// python/errors.cpp is the only place that turns them into Python exceptions.
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

// ... because it ends too early: more of it may mend that.
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

  // With a reason where the system's own words for the code would say something else.
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

// "0x1f40", the way every message names an offset.
std::string hex(std::uint64_t value);

// File bytes made safe to print: quoted, control and non-ASCII bytes escaped, at most 200 shown.
// A hostile file must not be able to fill a log or drive a terminal.
std::string quote(std::string_view text);

}  // namespace zerocopy
