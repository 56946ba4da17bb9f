// Finds the tensors inside objects of classes that are not native, such as whole modules.
#pragma once

#include <string>
#include <vector>

#include "memory/budget.h"
#include "pickle/document.h"

namespace zerocopy {

struct ObjectTensor {
  std::string name;  // the path through attributes, items and arguments
  const Global* owner;
  Value value;
};

// Visits each container once, so a few bytes cannot cause an endless walk.
class ObjectTensors {
 public:
  explicit ObjectTensors(const Document& document);

  // Searches an object of this name. Throws FormatError when the names are out of proportion.
  void look(std::string_view name, const Value& value);

  const std::vector<ObjectTensor>& found() const noexcept { return found_; }

 private:
  void walk(const std::string& name, const Value& value, int depth);
  void walk_object(const std::string& name, const Object& object, int depth);
  std::string below(const std::string& name, const Value& key, std::size_t place);
  std::string joined(const std::string& name, std::string_view key);

  Budget budget_;
  std::vector<bool> entered_;  // by slot
  const Global* owner_ = nullptr;
  std::vector<ObjectTensor> found_;
};

}  // namespace zerocopy
