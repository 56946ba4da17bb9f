// Which file lies behind an address of this process, and whether it still does: /proc/self/maps and pagemap,
// asked when somebody wants to know. So there is no register to keep of what is mapped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "memory/region.h"

namespace zerocopy {

struct FileMapping {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t offset;  // of `begin` in the file
  std::uint64_t inode;
  std::string path;  // as the system has it: " (deleted)" behind that of a file that has no name any more
};

// One line; none of memory that belongs to no file.
std::optional<FileMapping> mapping_in_line(std::string_view line);

// Those of files, in the order of their addresses. Throws FileError.
std::vector<FileMapping> file_mappings();

// The one that holds these bytes, or null.
const FileMapping* mapping_of(const std::vector<FileMapping>& mappings, ByteSpan bytes);

// The mapped file, if it is still to be found under its path.
std::optional<File> file_of(const FileMapping& mapping);

// Whether no page of these bytes is private: one of a private mapping is copied at its first write, and is no
// file's from then on. The descriptor is that of /proc/self/pagemap; false where the kernel does not say.
bool is_unwritten(int pagemap, std::uint64_t address, std::uint64_t size);

}  // namespace zerocopy
