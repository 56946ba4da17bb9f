// The HDF5 container: what is in a file, as a list, and a reader of plain files.
//
//   plain: superblock 0 at the file's first byte
//          groups      object header 1 ── symbol table ── B-tree 1 ── leaves of names ── object headers
//          datasets    object header 1 ── shape, type, contiguous layout: address and size
//
// That is what h5py writes by default of numbers that are not chunked, and what zerocopy.convert writes. To
// open a dataset takes libhdf5 a tenth of a millisecond, and this a microsecond. Everything else about HDF5,
// odd files and faulty ones too, is libhdf5's to read: whoever asked it hands its answer in as the same list.
//
// HDF5 File Format Specification, version 3: II.A superblock, III.A B-trees, III.B and C groups, IV.A
// headers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "container/record.h"
#include "io/source.h"

namespace zerocopy {

// A group, or a dataset of numbers that torch has.
struct Hdf5Entry {
  std::string path;  // from the root group, without a slash before it
  bool is_group = false;

  // Of a dataset.
  std::string dtype{};  // torch's name: "float32"
  std::vector<std::int64_t> shape{};
  std::optional<std::uint64_t> offset{};     // where its bytes lie in the file as a tensor has them
  std::shared_ptr<const Foreign> foreign{};  // else who reads it,
  std::string refusal{};                     // or why nobody does
  std::optional<std::size_t> same_as{};      // an entry before it that is the same dataset under another name
};

// In the order of the file, each group before what is in it.
using Hdf5Listing = std::vector<Hdf5Entry>;

// By its first bytes.
bool is_hdf5(const Source& source);

// None for a file that is not plain, or not sound: that is not decided here. Throws what reading throws.
std::optional<Hdf5Listing> list_plain_hdf5(const Source& source);

}  // namespace zerocopy
