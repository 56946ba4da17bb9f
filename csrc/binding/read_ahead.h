// Reading ahead for Python: files and mappings are read into memory in the background.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// BackgroundReading, read_path_ahead, read_storages_ahead.
void register_read_ahead(pybind11::module_& module);

}  // namespace zerocopy
