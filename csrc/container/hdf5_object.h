// An object header of a plain HDF5 file, version 1: what makes an object a group or a dataset.
//
// HDF5 File Format Specification, version 3: IV.A.
#pragma once

#include <optional>

#include "container/hdf5.h"
#include "memory/region.h"

namespace zerocopy::hdf5 {

// Leaves at the first thing that is not plain.
struct NotPlain {};

inline void expect(bool plain) {
  if (!plain) throw NotPlain();
}

inline ByteSpan required(const std::optional<ByteSpan>& message) {
  if (!message) throw NotPlain();
  return *message;
}

constexpr std::uint64_t kSuperblock = 96;

// Its messages, as they are in the file.
struct Object {
  Region bytes{};
  std::uint64_t size = 0;  // of the header
  std::optional<ByteSpan> dataspace{}, datatype{}, layout{}, symbol_table{};
};

// The one that bytes begin with. Throws NotPlain, or FormatError where it ends too soon.
Object read_object(Region bytes);

// A dataset, in a file that ends at `end`. Throws the same.
Hdf5Entry read_dataset(const Object& object, std::uint64_t end);

}  // namespace zerocopy::hdf5
