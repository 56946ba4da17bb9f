// What kind of file system a file lies on: one where each request waits for another machine, or a local one.
#pragma once

#include <cstdint>
#include <string>

namespace zerocopy {

struct FileSystem {
  std::string name;
  bool network = false;  // or FUSE: what stands behind that is unknown, and as a rule far away
};

// By the number that statfs(2) gives as f_type. One that is not in the table is taken for local.
FileSystem file_system_of_type(std::uint64_t type);

// Throw FileError.
FileSystem file_system_of(const std::string& path);
FileSystem file_system_of(int descriptor, const std::string& name);

}  // namespace zerocopy
