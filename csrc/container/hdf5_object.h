// The object header (version 1) of a plain HDF5 file, which describes a group or a dataset.
//
// HDF5 File Format Specification, version 3: IV.A.
#pragma once

#include <optional>

#include "container/hdf5.h"
#include "memory/region.h"

namespace zerocopy::hdf5 {

// Thrown at the first structure that is not plain.
struct NotPlain {};

inline void expect(bool plain) {
  if (!plain) throw NotPlain();
}

inline ByteSpan required(const std::optional<ByteSpan>& message) {
  if (!message) throw NotPlain();
  return *message;
}

constexpr std::uint64_t kSuperblock = 96;

// The messages of an object header, unparsed.
struct Object {
  Region bytes{};
  std::uint64_t size = 0;  // of the header
  std::optional<ByteSpan> dataspace{}, datatype{}, layout{}, symbol_table{};
};

// Reads the header at the start of `bytes`. Throws NotPlain, or FormatError if the bytes end too
// soon.
Object read_object(Region bytes);

// Reads a dataset of a file that ends at `end`. Throws the same errors.
Hdf5Entry read_dataset(const Object& object, std::uint64_t end);

}  // namespace zerocopy::hdf5
