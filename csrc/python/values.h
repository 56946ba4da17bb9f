// Builds the Python values of a Document, each node once: numbers, texts, lists, dicts, ... A
// derived class builds the rest, such as tensors and the objects of classes.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "pickle/document.h"

namespace zerocopy {

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

class Values {
 public:
  explicit Values(const Document& document) : made_(document.slots()) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  pybind11::object value(const Value& value);

 protected:
  ~Values() = default;

  pybind11::object node(const Node& node);
  pybind11::object tuple(const Sequence& sequence);
  void fill_mapping(const Mapping& mapping, const pybind11::object& made);

  // Builds a node of a kind that `make` does not know.
  virtual pybind11::object other(const Node& node) = 0;
  // Fills a new container. It is stored already, so it can contain itself.
  virtual void finish(const Node& node, const pybind11::object& made);

 private:
  pybind11::object make(const Node& node);
  pybind11::object set(const Sequence& sequence);

  BuiltObjects made_;
  // Mark a node that is being built, and one that is being built within that. No pickle can produce these.
  const pybind11::object in_progress_ = pybind11::reinterpret_borrow<pybind11::object>(Py_Ellipsis);
  const pybind11::object made_again_ = pybind11::reinterpret_borrow<pybind11::object>(Py_NotImplemented);
  int depth_ = 0;
};

}  // namespace zerocopy
