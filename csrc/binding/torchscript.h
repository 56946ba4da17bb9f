// A zip archive that has more to it than one pickle, as TorchScript's: its records by name, and the storages
// of each of its pickles.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "checkpoint/archive.h"

namespace zerocopy {

// Within the root folder, as bytes, in the order of the directory. No names of an archive that is no zip.
pybind11::list record_names(const Archive& archive);

// A record's content. Throws FormatError if there is no such record.
pybind11::bytes record_content(const Archive& archive, const std::string& name);

// A pickle, and [(key, location, torch.UntypedStorage)] of the storages it names, which lie in `folder`. It
// has been read to its end: each tensor lies in its storage, and each storage in its record. Storages without
// elements are left out; torch does not look for their records either.
pybind11::tuple pickle_with_storages(const Archive& archive, const std::string& name,
                                     const std::string& folder);

}  // namespace zerocopy
