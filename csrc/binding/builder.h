// Builds the Python objects that a Document describes.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "binding/torch_bridge.h"
#include "checkpoint/content.h"
#include "pickle/document.h"

namespace zerocopy {

// What the Python side decides.
struct BuildPolicy {
  // {(module, name): object}, names as bytes, for every global of the document that is not native.
  pybind11::dict allowed;
  // Called once per storage with (UntypedStorage, location), as torch.load calls map_location;
  // None leaves every storage where it is, on the CPU.
  pybind11::object restore;
  // Storages tagged "cpu" need not be asked about.
  bool cpu_as_is;
  // How Python 2's str is decoded; "bytes" leaves it alone.
  std::string encoding;
  // zerocopy.construction, or zerocopy.stubs: the calls that need torch's Python side.
  pybind11::module_ construction;
};

// `records` are those of the document's storages, by their index.
pybind11::object build(const Document& document, const Content& content, const std::vector<Record>& records,
                       const BuildPolicy& policy);

}  // namespace zerocopy
