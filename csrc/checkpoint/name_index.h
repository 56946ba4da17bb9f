// The leaves of a document by dotted names.
//
//   {"model": {"weight": T}, "steps": [1, 2]}      model.weight   steps.0   steps.1
//
// Dicts, lists and tuples are branches, and all other values are leaves, as are empty dicts, lists
// and tuples in a branch. If the document itself is a leaf, its name is ""; if it is empty, it has
// no leaves. Keys other than strings are converted as by str(), long or nested tuples by their
// position. If two leaves have the same name, the later name gets "~2" appended. If keys of a dict
// are equal, the last value takes the place of the first, as in Python.
//
// An object is a leaf, and the tensors inside it are leaves after it: by attribute, key or position.
// The leaves of a module are the entries of its state_dict(), with the same names.
//
//   {"model": Net(), "box": Box(start=T)}          model   model.conv.weight   box   box.start
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "memory/budget.h"
#include "pickle/document.h"
#include "text/name_hash.h"
#include "text/name_table.h"

namespace zerocopy {

struct Leaf {
  std::string_view name;  // a view of the pickle, or of the index
  Value value;
  const Global* inside = nullptr;  // the class of the object that holds the tensor, if one does
  std::size_t within = 0;          // of an object: the number of tensors inside it, the next leaves
};

// The branches on the current path. A branch that contains itself is not entered again.
class BranchPath {
 public:
  explicit BranchPath(const Document& document) : entered_(document.slots()) {}

  static bool is_branch(const Value& value);
  // Returns whether a value is an empty dict, list or tuple.
  static bool is_empty_branch(const Value& value);

  // Returns false if the branch is on the path already. Throws FormatError if branches nest too
  // deep.
  bool enter(const Node& branch);
  void leave(const Node& branch);
  int depth() const noexcept { return depth_; }

 private:
  std::vector<bool> entered_;  // by slot
  int depth_ = 0;
};

class NameIndex {
 public:
  // Throws FormatError when the names are out of proportion to the pickle: a few bytes can nest one
  // list in another repeatedly.
  explicit NameIndex(const Document& document);

  // In the order of the walk through the document.
  const std::vector<Leaf>& leaves() const noexcept { return leaves_; }
  // Returns the position among the leaves.
  std::optional<std::size_t> find(std::string_view name) const;

  // Returns whether a leaf is a tensor of any layout, or a parameter.
  static bool is_tensor(const Value& value);
  // Returns the dense tensor of the leaf or of its parameter, else null.
  static const Tensor* dense(const Value& value);

 private:
  // An object that torch.nn.Module.state_dict() would walk through.
  struct Module {
    const Mapping* parameters = nullptr;
    const Mapping* buffers = nullptr;
    const Mapping* modules = nullptr;
    const Sequence* hidden = nullptr;  // names of buffers that are not persistent

    void note(std::string_view name, const Value& attribute);
  };

  void add(std::string_view name, const Value& value);
  void add_object(const Value& object);
  void search(const Value& value, const Global& owner, bool again);
  void search_object(const Object& object);
  void search_state(const Value& state, const Global& owner);
  void search_mapping(const Mapping& mapping, const Global& owner, bool again = false,
                      const Sequence* hidden = nullptr);
  void search_items(const ArenaList<Value>& items, const Global& owner);
  void search_item(std::string_view key, const Value& value, const Global& owner, bool again = false);
  std::optional<Module> module_of(const Object& object);
  void add_leaf(std::string_view name, const Value& value);
  std::string_view join(std::string_view branch, std::string_view key);
  std::string_view keep(std::string name);

  Budget leaf_budget_;
  Budget name_budget_;
  std::vector<bool> seen_;     // by slot
  std::vector<bool> visited_;  // by slot: values inside objects
  std::string path_;           // of such a value
  BranchPath branch_path_;
  std::vector<Leaf> leaves_;
  std::deque<std::string> kept_;
  NameTable<NameHash> by_name_;
};

}  // namespace zerocopy
