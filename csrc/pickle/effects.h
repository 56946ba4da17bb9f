// What building a document would do beside making plain values: the calls of globals that are not
// native, and the attributes that are set. The allow-lists have a word in each of them, and a tool
// that asks them beforehand need not build anything.
#pragma once

#include <set>
#include <string_view>
#include <utility>

#include "pickle/document.h"

namespace zerocopy {

using NamePair = std::pair<std::string_view, std::string_view>;  // module, name: views of the pickle

struct Effects {
  std::set<NamePair> called;   // by REDUCE, or handed to a rebuild function that calls it
  std::set<NamePair> created;  // by NEWOBJ
  std::set<NamePair> changed;  // whose result then gets items or a state
  std::set<std::pair<NamePair, std::string_view>> attributes;  // class, attribute
  bool odd = false;  // attributes whose name is no string, or a call of something that is no global
};

Effects effects_of(const Document& document);

}  // namespace zerocopy
