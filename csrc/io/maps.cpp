#include "io/maps.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <functional>
#include <span>

#include "memory/pages.h"

namespace zerocopy {
namespace {

// Consumes a number and the character after it. Returns false if they are missing.
bool take(std::string_view& line, int base, char behind, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number, base);
  const auto length = static_cast<std::size_t>(end - line.data());
  if (error != std::errc() || length >= line.size() || line[length] != behind) return false;
  line.remove_prefix(length + 1);
  return true;
}

// Bits of a 64-bit entry of pagemap, one entry per page. kPresent: in memory. kThere: in memory, or
// swapped. kOfFile: a page of a file, or shared.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63U;
constexpr std::uint64_t kThere = std::uint64_t{3} << 62U;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61U;

constexpr std::size_t kPermissions = 4;  // characters: rw-p

bool is_private(std::uint64_t entry) { return (entry & kThere) != 0 && (entry & kOfFile) == 0; }
bool is_clean(std::uint64_t entry) { return (entry & kPresent) != 0 && (entry & kOfFile) != 0; }

// Calls `see` with the first page and the entries of each block of the pages [first, behind), until it
// returns false. Returns false then, or if the kernel does not tell.
bool for_each_block(int pagemap, std::uint64_t first, std::uint64_t behind,
                    const std::function<bool(std::uint64_t, std::span<const std::uint64_t>)>& see) {
  std::array<std::uint64_t, 4096> entries{};
  while (first < behind) {
    const std::size_t wanted = std::min<std::uint64_t>(entries.size(), behind - first);
    const ssize_t got = ::pread(pagemap, entries.data(), wanted * sizeof entries[0],
                                static_cast<off_t>(first * sizeof entries[0]));
    if (got < 0 || static_cast<std::size_t>(got) != wanted * sizeof entries[0]) return false;
    if (!see(first, std::span(entries).first(wanted))) return false;
    first += wanted;
  }
  return true;
}

// MADV_PAGEOUT of Linux 5.4 never loses what a page has, whoever writes to it at that moment.
// MADV_DONTNEED would, of a private mapping.
void page_out(std::uint64_t first, std::uint64_t pages) {
  const std::uint64_t page = page_size();
  // NOLINTNEXTLINE(*-reinterpret-cast,*-no-int-to-ptr): an address from /proc/self/maps
  ::madvise(reinterpret_cast<void*>(first * page), pages * page, MADV_PAGEOUT);
}

std::uint64_t clean_pages(int pagemap, std::uint64_t first, std::uint64_t behind) {
  std::uint64_t found = 0;
  for_each_block(pagemap, first, behind, [&](std::uint64_t, std::span<const std::uint64_t> entries) {
    found += static_cast<std::uint64_t>(std::ranges::count_if(entries, is_clean));
    return true;
  });
  return found;
}

}  // namespace

// 7f2c4c000000-7f2c5c000000 rw-p 00001000 fe:00 131075                     /models/bert.pt
std::optional<FileMapping> mapping_in_line(std::string_view line) {
  FileMapping mapping{};
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  if (!take(line, 16, '-', mapping.begin) || !take(line, 16, ' ', mapping.end)) return std::nullopt;
  if (line.find(' ') != kPermissions) return std::nullopt;
  mapping.writable = line[1] == 'w';
  mapping.shared = line[3] == 's';
  line.remove_prefix(kPermissions + 1);
  if (!take(line, 16, ' ', mapping.offset)) return std::nullopt;
  const std::string_view file = line;
  if (!take(line, 16, ':', major) || !take(line, 16, ' ', minor) || !take(line, 10, ' ', mapping.inode)) {
    return std::nullopt;
  }
  mapping.identity = file.substr(0, file.size() - line.size() - 1);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (!line.starts_with('/') && !mapping.shared) return std::nullopt;
  mapping.path = line;
  return mapping;
}

std::vector<FileMapping> file_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::vector<FileMapping> mappings;
  for (std::string line; std::getline(maps, line);) {
    if (auto mapping = mapping_in_line(line)) mappings.push_back(std::move(*mapping));
  }
  return mappings;
}

std::optional<FileMapping> file_mapping_at(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::string_view rest = line;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (!take(rest, 16, '-', begin) || !take(rest, 16, ' ', end) || end <= address) continue;
    return begin <= address ? mapping_in_line(line) : std::nullopt;
  }
  return std::nullopt;
}

const FileMapping* mapping_of(const std::vector<FileMapping>& mappings, ByteSpan bytes) {
  // NOLINTNEXTLINE(*-reinterpret-cast): the address to look up
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto behind = std::ranges::upper_bound(mappings, begin, {}, &FileMapping::begin);
  if (behind == mappings.begin()) return nullptr;
  const FileMapping& mapping = *(behind - 1);
  return begin < mapping.end && bytes.size() <= mapping.end - begin ? &mapping : nullptr;
}

std::optional<File> file_of(const FileMapping& mapping) {
  try {
    File file = File::open(mapping.path, File::Access::read);
    if (file.inode() == mapping.inode) return file;
    // NOLINT(bugprone-empty-catch): the path does not name the file any more
  } catch (const FileError&) {
  }
  return std::nullopt;
}

bool is_unwritten(int pagemap, std::uint64_t address, std::uint64_t size) {
  const std::uint64_t page = page_size();
  return for_each_block(pagemap, address / page, (address + size + page - 1) / page,
                        [](std::uint64_t, std::span<const std::uint64_t> entries) {
                          return std::ranges::none_of(entries, is_private);
                        });
}

std::uint64_t release_pages(const FileMapping& mapping, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page = page_size();
  if (end <= mapping.begin || mapping.end <= begin) return 0;
  const std::uint64_t first = std::max(begin, mapping.begin) / page;
  const std::uint64_t behind = (std::min(end, mapping.end) + page - 1) / page;
  const File pagemap = File::open("/proc/self/pagemap", File::Access::read);
  const int descriptor = pagemap.descriptor();
  const std::uint64_t before = clean_pages(descriptor, first, behind);
  for_each_block(descriptor, first, behind, [](std::uint64_t at, std::span<const std::uint64_t> entries) {
    for (auto run = entries.begin(); run != entries.end();) {
      run = std::find_if(run, entries.end(), is_clean);
      const auto last = std::find_if_not(run, entries.end(), is_clean);
      const auto skipped = static_cast<std::uint64_t>(run - entries.begin());
      if (run != last) page_out(at + skipped, static_cast<std::uint64_t>(last - run));
      run = last;
    }
    return true;
  });
  // Pages that were read ahead into the page cache are not mapped.
  if (const std::optional<File> file = file_of(mapping)) {
    ::posix_fadvise(file->descriptor(), static_cast<off_t>(mapping.offset + first * page - mapping.begin),
                    static_cast<off_t>((behind - first) * page), POSIX_FADV_DONTNEED);
  }
  const std::uint64_t after = clean_pages(descriptor, first, behind);
  return before > after ? (before - after) * page : 0;
}

}  // namespace zerocopy
