// The side effects of building a document: calls of globals that are not native, and attributes
// that are set. Allow-lists decide on each. Tools can list them without building anything.
#pragma once

#include <set>
#include <string_view>
#include <utility>

#include "pickle/document.h"

namespace zerocopy {

using NamePair = std::pair<std::string_view, std::string_view>;  // module, name: views of the pickle

struct Effects {
  std::set<NamePair> called;   // by REDUCE, or passed to a rebuild function that calls it
  std::set<NamePair> created;  // by NEWOBJ
  std::set<NamePair> changed;  // whose results get items or a state
  std::set<std::pair<NamePair, std::string_view>> attributes;  // class, attribute
  bool odd = false;  // whether an attribute name is not a string, or a callee is not a global
};

Effects effects_of(const Document& document);

}  // namespace zerocopy
