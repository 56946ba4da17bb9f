// Builds the Python objects that a Document describes.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "binding/tensors.h"
#include "pickle/document.h"

namespace zerocopy {

// Settings from the Python side.
struct BuildPolicy {
  // {(module, name): object} for each global that is not native. Names are bytes.
  pybind11::dict allowed;
  // The encoding of Python 2's str. "bytes" keeps bytes.
  std::string encoding;
  // zerocopy.loading.objects.builder or a replacement: calls that need torch's Python side.
  pybind11::object construction;
};

// The object of each node, by its slot. Pages are allocated on use, so a single leaf of a large
// document needs no full table.
class BuiltObjects {
 public:
  explicit BuiltObjects(std::uint32_t slots) : pages_(slots / kPage + 1) {}

  pybind11::object& operator[](std::uint32_t slot) {
    std::unique_ptr<Page>& page = pages_[slot / kPage];
    if (!page) page = std::make_unique<Page>();
    return (*page)[slot % kPage];
  }

 private:
  static constexpr std::uint32_t kPage = 256;
  using Page = std::array<pybind11::object, kPage>;

  std::vector<std::unique_ptr<Page>> pages_;
};

class Builder {
 public:
  Builder(const Document& document, Tensors& tensors, const BuildPolicy& policy)
      : tensors_(tensors), policy_(policy), made_(document.slots()) {}

  pybind11::object value(const Value& value);

 private:
  pybind11::object node(const Node& node);
  pybind11::object make(const Node& node);
  void finish(const Node& node, const pybind11::object& made);

  pybind11::object text(const Blob& blob);
  pybind11::object byte_string(const Blob& blob);
  pybind11::object big_integer(const Blob& blob);
  pybind11::object tuple(const Sequence& sequence);
  pybind11::object set(const Sequence& sequence);
  pybind11::object global(const Global& global);
  pybind11::object parameter(const Parameter& parameter);
  pybind11::object object(const Object& object);
  void fill_list(const Sequence& sequence, const pybind11::object& list);
  void fill_mapping(const Mapping& mapping, const pybind11::object& made);
  void apply_steps(const Object& object, const pybind11::object& made);

  static const char* name_of(Object::Call call);
  pybind11::object construct(const char* name) { return policy_.construction.attr(name); }

  Tensors& tensors_;
  const BuildPolicy& policy_;
  BuiltObjects made_;
  const pybind11::object in_progress_ =
      pybind11::reinterpret_borrow<pybind11::object>(Py_Ellipsis);  // no pickle makes one
  int depth_ = 0;
};

}  // namespace zerocopy
