// Zip archives with more than one pickle, such as TorchScript's: their records by name, and the
// storages of each pickle.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "checkpoint/archive.h"

namespace zerocopy {

// Returns the names within the root folder, as bytes, in directory order. Empty for other
// containers.
pybind11::list record_names(const Archive& archive);

// Returns a record's content. Throws FormatError if the record is missing.
pybind11::bytes record_content(const Archive& archive, const std::string& name);

// Returns a pickle, and [(key, location, torch.UntypedStorage)] of its storages, which lie in
// `folder`. The pickle is fully checked: each tensor fits its storage, and each storage its record.
// Storages without elements are omitted, since torch does not read their records either.
pybind11::tuple pickle_with_storages(const Archive& archive, const std::string& name,
                                     const std::string& folder);

}  // namespace zerocopy
