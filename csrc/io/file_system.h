// The kind of file system that holds a file: local, or on the network, where each request waits for
// another machine.
#pragma once

#include <cstdint>
#include <string>

namespace zerocopy {

struct FileSystem {
  std::string name;
  bool network = false;  // or FUSE, which is mostly remote
};

// Looks up f_type of statfs(2). Unknown types count as local.
FileSystem file_system_of_type(std::uint64_t type);

// Both throw FileError.
FileSystem file_system_of(const std::string& path);
FileSystem file_system_of(int descriptor, const std::string& name);

}  // namespace zerocopy
