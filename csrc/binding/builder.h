// Builds the Python objects that a Document describes.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "binding/tensors.h"
#include "pickle/document.h"
#include "python/values.h"

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

class Builder final : public Values {
 public:
  Builder(const Document& document, Tensors& tensors, const BuildPolicy& policy)
      : Values(document), tensors_(tensors), policy_(policy) {}

 private:
  pybind11::object other(const Node& node) override;
  void finish(const Node& node, const pybind11::object& made) override;

  pybind11::object byte_string(const Blob& blob);
  pybind11::object global(const Global& global);
  pybind11::object parameter(const Parameter& parameter);
  pybind11::object object(const Object& object);
  void set_attributes(const pybind11::object& made, const Value& state);
  void apply_steps(const Object& object, const pybind11::object& made);

  static const char* name_of(Object::Call call);
  pybind11::object construct(const char* name) { return policy_.construction.attr(name); }

  Tensors& tensors_;
  const BuildPolicy& policy_;
};

}  // namespace zerocopy
