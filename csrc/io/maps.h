// Finds the file that is mapped at an address of this process, from /proc/self/maps and pagemap.
// The kernel is asked each time, so zerocopy keeps no list of mappings.
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
  bool shared;
  bool writable;
  std::string identity;  // device and inode, as the kernel writes them
  std::string path;      // as the kernel reports it: with " (deleted)" if the file has no name any more
};

// Parses one line. Returns nullopt for private memory without a file. Shared memory may have no path.
std::optional<FileMapping> mapping_in_line(std::string_view line);

// Returns the mappings of files in address order. Throws FileError.
std::vector<FileMapping> file_mappings();

// Returns the mapping of a file that is at this address now. Reads the list only up to this address:
// recent mappings are mostly near its beginning, before the libraries. Throws FileError.
std::optional<FileMapping> file_mapping_at(std::uint64_t address);

// Returns the mapping that holds these bytes, or null.
const FileMapping* mapping_of(const std::vector<FileMapping>& mappings, ByteSpan bytes);

// Opens the mapped file, or returns nullopt if its path does not name it any more.
std::optional<File> file_of(const FileMapping& mapping);

// Returns whether no page of these bytes was copied. The first write to a page of a private mapping
// copies the page, and detaches it from the file. `pagemap` is a descriptor of /proc/self/pagemap.
// Returns false if the kernel does not tell.
bool is_unwritten(int pagemap, std::uint64_t address, std::uint64_t size);

// Gives clean pages of these bytes back to the system, from this process and from the page cache.
// Addresses and values stay: pages that were written to are kept, and the others are read again when
// they are touched, so other threads may read and write meanwhile. Pages that other processes map, and
// files that this process may not write to, are left alone. Returns the number of bytes that this
// process had in memory and has no more. Throws FileError.
std::uint64_t release_pages(const FileMapping& mapping, std::uint64_t begin, std::uint64_t end);

}  // namespace zerocopy
