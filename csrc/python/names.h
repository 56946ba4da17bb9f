// The names of a catalog's leaves, as Python's strings.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string_view>

#include "checkpoint/catalog.h"

namespace zerocopy {

// A name is UTF-8, perhaps with lone surrogates, or what Python 2 wrote: there bytes that are none are
// escaped. What either way makes of it leads back to it: place_of() asks both.
pybind11::str text_of(std::string_view name);
std::optional<std::size_t> place_of(const Catalog& catalog, pybind11::handle name);

// Throws KeyError.
[[noreturn]] void throw_missing(pybind11::handle name);

}  // namespace zerocopy
