// The entries of a dict as Python has them: of equal keys (1, True, 1.0) the first and the value of the last.
#pragma once

#include <vector>

#include "pickle/document.h"

namespace zerocopy {

std::vector<Mapping::Item> dict_entries(const Mapping& mapping);

}  // namespace zerocopy
