// What is in an HDF5 file, as Python and the core tell each other: h5py lists what the core cannot.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "checkpoint/archive.h"
#include "container/hdf5.h"

namespace zerocopy {

// Of a list of tuples as _C.pyi has them; none for None.
std::optional<Hdf5Listing> listing_of(const pybind11::object& listing);

// The same, the other way round, of what the core lists itself.
pybind11::object python_listing(const std::optional<Hdf5Listing>& listing);

// As Archive::open, where it is not an HDF5 file that has been listed already.
std::unique_ptr<Archive> open_listed(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                     Mode mode, std::optional<Hdf5Listing> listing);

}  // namespace zerocopy
