// Returns the entries of a dict as Python keeps them: of equal keys (1, True, 1.0), the first key
// and the last value.
#pragma once

#include <vector>

#include "pickle/document.h"

namespace zerocopy {

std::vector<Mapping::Item> dict_entries(const Mapping& mapping);

}  // namespace zerocopy
