// The entries of a dict as Python keeps them: of equal keys (1, True, 1.0), the first key and the
// last value.
#pragma once

#include <span>
#include <vector>

#include "pickle/document.h"

namespace zerocopy {

// A view of the mapping's own items, unless two of its keys may be equal. So a dict of a hundred
// thousand names is not copied.
class DictEntries {
 public:
  explicit DictEntries(const Mapping& mapping);
  DictEntries(const DictEntries&) = delete;
  DictEntries& operator=(const DictEntries&) = delete;

  auto begin() const noexcept { return entries_.begin(); }
  auto end() const noexcept { return entries_.end(); }

 private:
  std::vector<Mapping::Item> merged_;
  std::span<const Mapping::Item> entries_;
};

}  // namespace zerocopy
