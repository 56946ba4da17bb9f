// A file opened with the read strategy that Python chose.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/mapping.h"
#include "io/source.h"
#include "io/transfer.h"

namespace zerocopy {

// The strategy to read a file.
enum class ReadStrategy : std::uint8_t {
  whole,    // mapped, read on page faults
  ahead,    // mapped and read ahead
  windows,  // mapped window by window
  pread,    // read into private memory
  direct,   // as pread, past the page cache
};

// Throws pybind11::value_error.
ReadStrategy parse_strategy(const std::string& name);

// Mapped bytes stay in the page cache. Bytes for private memory or a device are read once. The
// mapping and the source share a descriptor.
struct OpenedFile {
  OpenedFile() = default;
  OpenedFile(File file, std::uint64_t start, Mode mode, ReadStrategy strategy,
             const TransferOptions& options);

  std::shared_ptr<const Source> source;
  std::shared_ptr<Mapper> mapping;  // null if bytes are read into private memory
};

}  // namespace zerocopy
