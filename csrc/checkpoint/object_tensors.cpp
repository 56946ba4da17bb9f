#include "checkpoint/object_tensors.h"

#include <utility>

#include "checkpoint/dict_entries.h"
#include "checkpoint/name_index.h"

namespace zerocopy {
namespace {

constexpr std::uint64_t kTimes = 64;  // as for the name index
constexpr std::uint64_t kEntryCost = 64;

}  // namespace

ObjectTensors::ObjectTensors(const Document& document)
    : budget_(document.text().size(), "pickle: far more tensors inside objects than it spells out", kTimes,
              document.fixed_budget()),
      entered_(document.slots()) {}

void ObjectTensors::look(std::string_view name, const Value& value) {
  owner_ = nullptr;
  walk(std::string(name), value, 0);
}

void ObjectTensors::walk(const std::string& name, const Value& value, int depth) {
  if (NameIndex::is_tensor(value)) {
    if (owner_ == nullptr) return;
    budget_.charge(name.size() + kEntryCost);
    found_.push_back({name, owner_, value});
    return;
  }
  if (depth > Document::kMaxNesting) return;
  const bool is_object = value.is(Kind::object);
  if (!is_object && !BranchPath::is_branch(value)) return;
  if (entered_[value.node().slot]) return;
  entered_[value.node().slot] = true;
  std::size_t place = 0;
  if (is_object) {
    walk_object(name, value.as<Object>(), depth);
  } else if (value.is_mapping()) {
    for (const auto& [key, item] : DictEntries(value.as<Mapping>())) {
      walk(below(name, key, place++), item, depth + 1);
    }
  } else {
    for (const Value& item : value.as<Sequence>().items) {
      walk(joined(name, std::to_string(place++)), item, depth + 1);
    }
  }
}

void ObjectTensors::walk_object(const std::string& name, const Object& object, int depth) {
  const Global* outer = std::exchange(owner_, object.callable);
  std::size_t place = 0;
  if (object.arguments != nullptr) {
    for (const Value& item : object.arguments->items) {
      walk(joined(name, std::to_string(place++)), item, depth + 1);
    }
  }
  place = 0;
  for (const Object::Step& step : object.steps) {
    if (step.effect == Object::Effect::set_item) {
      walk(below(name, step.key, place++), step.value, depth + 1);
    } else if (step.effect == Object::Effect::append) {
      walk(joined(name, std::to_string(place++)), step.value, depth + 1);
    } else {
      walk(name, step.value, depth + 1);
    }
  }
  owner_ = outer;
}

std::string ObjectTensors::below(const std::string& name, const Value& key, std::size_t place) {
  if (!key.is_text()) {
    return joined(name, key.is(Kind::integer) ? std::to_string(key.integer()) : "#" + std::to_string(place));
  }
  const std::string_view text = key.as<Blob>().bytes.text();
  // The three dicts of a torch.nn.Module are not part of a parameter's name.
  if (text == "_parameters" || text == "_buffers" || text == "_modules") return name;
  return joined(name, text);
}

std::string ObjectTensors::joined(const std::string& name, std::string_view key) {
  budget_.charge(name.size() + key.size() + 1);
  return name.empty() ? std::string(key) : name + "." + std::string(key);
}

}  // namespace zerocopy
