// Builds parts of a document: the leaves that were chosen, in the structure that they are in.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "binding/builder.h"
#include "checkpoint/dict_entries.h"
#include "checkpoint/name_index.h"
#include "python/names.h"
#include "python/python.h"

namespace zerocopy {

// Builds the document without the leaves that were not chosen. Dicts omit these leaves and the
// branches left empty. Lists and tuples, whose positions matter, hold None instead. If an object was
// not chosen but tensors inside it were, a dict of these tensors takes its place. For a module, that
// is a part of its state_dict().
class DocumentPruner {
 public:
  DocumentPruner(const Document& document, Builder& builder, const std::vector<Leaf>& leaves,
                 const std::vector<bool>& keep, pybind11::object construction)
      : path_(document),
        builder_(builder),
        leaves_(leaves),
        keep_(keep),
        construction_(std::move(construction)) {}

  pybind11::object root(const Value& root) {
    if (pybind11::object made = keep_.empty() ? pybind11::object() : value(root)) return made;
    if (root.is_mapping()) return new_dict(root.as<Mapping>());
    return root.is(Kind::list)    ? pybind11::object(pybind11::list())
           : root.is(Kind::tuple) ? pybind11::object(pybind11::tuple())
                                  : pybind11::none();
  }

 private:
  // Returns null if no leaf of the value was chosen. Visits the leaves in the order of NameIndex.
  pybind11::object value(const Value& value) {
    if (!BranchPath::is_branch(value)) return leaf(value);
    if (!path_.enter(value.node())) return {};
    pybind11::object made =
        value.is_mapping() ? mapping(value.as<Mapping>()) : sequence(value.as<Sequence>());
    path_.leave(value.node());
    return made;
  }

  pybind11::object leaf(const Value& value) {
    const std::size_t place = next_;
    const Leaf& object = leaves_[place];
    next_ += 1 + object.within;
    if (keep_[place]) return builder_.value(value);
    const pybind11::object tensors = steal(PyODict_New());
    const std::size_t prefix = object.name.empty() ? 0 : object.name.size() + 1;
    for (std::size_t i = place + 1; i < next_; ++i) {
      if (keep_[i]) tensors[text_of(leaves_[i].name.substr(prefix))] = builder_.value(leaves_[i].value);
    }
    return pybind11::len(tensors) == 0 ? pybind11::object() : tensors;
  }

  static pybind11::object new_dict(const Mapping& mapping) {
    return steal(mapping.kind == Kind::ordered_dict ? PyODict_New() : PyDict_New());
  }

  pybind11::object mapping(const Mapping& mapping) {
    const pybind11::object made = new_dict(mapping);
    for (const auto& [key, item] : DictEntries(mapping)) {
      if (const pybind11::object kept = value(item)) made[builder_.value(key)] = kept;
    }
    if (pybind11::len(made) == 0) return {};
    if (!mapping.state.is(Kind::none))
      construction_.attr("set_attributes")(made, builder_.value(mapping.state));
    return made;
  }

  pybind11::object sequence(const Sequence& sequence) {
    pybind11::list made;
    bool empty = true;
    for (const Value& item : sequence.items) {
      const pybind11::object kept = value(item);
      empty = empty && !kept;
      made.append(kept ? kept : pybind11::none());
    }
    if (empty) return {};
    return sequence.kind == Kind::tuple ? pybind11::object(pybind11::tuple(made)) : pybind11::object(made);
  }

  BranchPath path_;
  Builder& builder_;
  const std::vector<Leaf>& leaves_;
  const std::vector<bool>& keep_;
  pybind11::object construction_;
  std::size_t next_ = 0;
};

}  // namespace zerocopy
