// Converts names of a checkpoint to Python strings.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string_view>

#include "checkpoint/archive.h"
#include "checkpoint/name_index.h"

namespace zerocopy {

// Converts a name to str. Names are UTF-8, perhaps with lone surrogates, or bytes of Python 2,
// whose invalid bytes are escaped. position_of() tries to undo both conversions.
pybind11::str text_of(std::string_view name);
std::optional<std::size_t> position_of(const NameIndex& name_index, pybind11::handle name);

// Returns (name, reason) of each.
pybind11::list names_left_out(const Archive& archive);

// Throws KeyError.
[[noreturn]] void throw_missing(pybind11::handle name);

}  // namespace zerocopy
