// Exchanges listings of HDF5 files with Python: h5py lists the files that the core cannot.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "checkpoint/archive.h"
#include "container/hdf5.h"

namespace zerocopy {

// Converts a list of tuples, as _C.pyi describes it. None becomes nullopt.
std::optional<Hdf5Listing> listing_of(const pybind11::object& listing);

// Converts the core's own listing to Python.
pybind11::object python_listing(const std::optional<Hdf5Listing>& listing);

// Opens an archive. With a listing, opens an HDF5 file; otherwise works as Archive::open.
std::unique_ptr<Archive> open_listed(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                     Mode mode, std::optional<Hdf5Listing> listing);

}  // namespace zerocopy
