// The HDF5 container: a listing of its content, and a reader for plain files.
//
//   plain: superblock 0 at the file's first byte
//          groups      object header 1 ── symbol table ── B-tree 1 ── leaves of names ── object headers
//          datasets    object header 1 ── shape, type, contiguous layout: address and size
//
// h5py (by default) and zerocopy.convert write unchunked numeric datasets in this form. libhdf5 takes
// 0.1 ms to open a dataset, and this reader 1 us. libhdf5 reads all other files, also odd and broken
// ones. Callers convert its answer to the same kind of listing, and pass that to the loader.
//
// HDF5 File Format Specification, version 3: II.A superblock, III.A B-trees, III.B and C groups,
// IV.A headers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "container/record.h"
#include "io/source.h"

namespace zerocopy {

// A group, or a dataset of numbers with a torch dtype. An entry that is not a group and has no dtype is a
// dataset or an attribute that is left out; `refusal` says why.
struct Hdf5Entry {
  std::string path;  // from the root group, without a leading slash
  bool is_group = false;

  // The fields below are for datasets.
  std::string dtype{};  // torch's name: "float32"
  std::vector<std::int64_t> shape{};
  // Where its bytes begin in the file, if a tensor can use them as they are.
  std::optional<std::uint64_t> offset{};
  std::shared_ptr<const ExternalBytes> external{};  // otherwise, the reader of its bytes
  std::string refusal{};                            // otherwise, why its bytes cannot be read
  std::optional<std::size_t> same_as{};             // an earlier entry of the same dataset under another name
};

// In file order. Each group precedes its members. Objects that are left out come last.
using Hdf5Listing = std::vector<Hdf5Entry>;

// Checks the first bytes.
bool is_hdf5(const Source& source);

// Returns nullopt for a file that is not plain or not valid. Throws only the source's errors.
std::optional<Hdf5Listing> list_plain_hdf5(const Source& source);

}  // namespace zerocopy
