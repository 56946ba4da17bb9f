// Helpers of the core tests: bytes written by hand, and zip archives with wrong fields.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "io/source.h"

namespace zerocopy::test {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): "N\0"s, for bytes with NUL
using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace)

// Allocates exactly that size, so a sanitizer detects a read past the end.
inline Region region_of(std::string_view bytes) {
  const Region region = Region::allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(region.data(), bytes.data(), bytes.size());
  return region;
}

inline std::shared_ptr<const Source> source_of(std::string_view bytes) {
  return std::make_shared<const MemorySource>(region_of(bytes));
}

template <typename T>
std::string little(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
inline std::string u16(std::uint64_t value) { return little(static_cast<std::uint16_t>(value)); }
inline std::string u32(std::uint64_t value) { return little(static_cast<std::uint32_t>(value)); }
inline std::string u64(std::uint64_t value) { return little(value); }

constexpr std::uint32_t kOnes = 0xFFFFFFFF;

// The header of a record, local or central.
struct Header {
  std::string name;
  std::uint64_t flags = 0;
  std::uint64_t method = 0;
  std::uint64_t stored_size = 0;
  std::uint64_t size = 0;
  std::string extra;
  std::string comment;  // central only, as the fields below
  std::uint64_t disk = 0;
  std::uint64_t attributes = 0;
  std::uint64_t header = 0;  // offset of the local header

  std::string local() const {
    return "PK\3\4"s + u16(20) + u16(flags) + u16(method) + u32(0) + u32(0) + u32(stored_size) + u32(size) +
           u16(name.size()) + u16(extra.size()) + name + extra;
  }
  std::string central() const {
    return "PK\1\2"s + u16(20) + u16(20) + u16(flags) + u16(method) + u32(0) + u32(0) + u32(stored_size) +
           u32(size) + u16(name.size()) + u16(extra.size()) + u16(comment.size()) + u16(disk) + u16(0) +
           u32(attributes) + u32(header) + name + extra + comment;
  }
};

struct ZipRecord {
  ZipRecord(std::string name, std::string content, std::uint64_t method = 0, std::uint64_t inflated = 0)
      : bytes(std::move(content)) {
    local.name = std::move(name);
    local.method = method;
    local.stored_size = bytes.size();
    local.size = method == 0 ? bytes.size() : inflated;
    central = local;
  }

  std::string bytes;
  std::string after;
  Header local;
  Header central;
  bool keep_offset = false;  // keeps central.header unchanged
};

struct ZipEndFields {
  std::uint64_t disk = 0;
  std::uint64_t directory_disk = 0;
  std::uint64_t here = 0;
  std::uint64_t entries = 0;
  std::uint64_t size = 0;
  std::uint64_t offset = 0;

  std::string record(const std::string& comment = "") const {
    return "PK\5\6"s + u16(disk) + u16(directory_disk) + u16(here) + u16(entries) + u32(size) + u32(offset) +
           u16(comment.size()) + comment;
  }
};

// The records and the directory. Sets `end` to correct fields of the end record.
inline std::string zip_body(std::vector<ZipRecord> records, ZipEndFields& end) {
  std::string file;
  std::string directory;
  for (ZipRecord& record : records) {
    if (!record.keep_offset) record.central.header = file.size();
    directory += record.central.central();
    file += record.local.local() + record.bytes + record.after;
  }
  end = {0, 0, records.size(), records.size(), directory.size(), file.size()};
  return file + directory;
}

inline std::string zip_of(std::vector<ZipRecord> records, const std::string& comment = "") {
  ZipEndFields end;
  const std::string body = zip_body(std::move(records), end);
  return body + end.record(comment);
}

// Returns the message of the E that `body` throws. Fails the test if it throws none.
template <typename E, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Checks that `good`, cut at every length, is refused and never crashes (as protozero's tests do).
template <typename E, typename Read>
void refuses_every_cut(std::string_view good, Read read) {
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(read(good.substr(0, size)), E) << "cut at " << size;
  }
  EXPECT_NO_THROW(read(good));
}

}  // namespace zerocopy::test
