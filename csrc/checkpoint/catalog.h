// The leaves of a document by dotted names: what a checkpoint holds, as people call it.
//
//   {"model": {"weight": T}, "steps": [1, 2]}      model.weight   steps.0   steps.1
//
// Dicts, lists and tuples are branches, everything else is a leaf; a document that is a leaf has the name "".
// Keys that are no strings are spelled out. Of two leaves that come to one name the later gets "~2" appended.
// Of equal keys of a dict the last value counts, at the place of the first, as in Python.
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
  std::string_view name;  // a view of the pickle, or of the catalog
  Value value;
};

// The branches that are being walked: one that holds itself is not entered again.
class Path {
 public:
  explicit Path(const Document& document) : entered_(document.slots()) {}

  static bool is_branch(const Value& value);

  // False if it is being walked already. Throws FormatError where branches nest too deep to be walked.
  bool enter(const Node& branch);
  void leave(const Node& branch);
  int depth() const noexcept { return depth_; }

 private:
  std::vector<bool> entered_;  // by slot
  int depth_ = 0;
};

class Catalog {
 public:
  // Throws FormatError when the names are out of proportion to the pickle: a few bytes can put one list into
  // another again and again.
  explicit Catalog(const Document& document);

  // In the order of the file, in which Path leads to them.
  const std::vector<Leaf>& leaves() const noexcept { return leaves_; }
  // Its place among the leaves.
  std::optional<std::size_t> find(std::string_view name) const;

  // Whether a leaf is a tensor, dense or of any other kind, or a parameter.
  static bool is_tensor(const Value& value);
  // The dense tensor that it is, or that the parameter holds; else null.
  static const Tensor* dense(const Value& value);

 private:
  void add(std::string_view name, const Value& value);
  void add_leaf(std::string_view name, const Value& value);
  std::string_view join(std::string_view branch, std::string_view key);
  std::string_view keep(std::string name);

  Budget budget_;
  Path path_;
  std::vector<Leaf> leaves_;
  std::deque<std::string> kept_;
  NameTable<NameHash> by_name_;
};

}  // namespace zerocopy
