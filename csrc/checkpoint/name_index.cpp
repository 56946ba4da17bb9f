#include "checkpoint/name_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>
#include <string_view>

#include "checkpoint/dict_entries.h"

namespace zerocopy {
namespace {

// An honest pickle spells out each leaf in at least two bytes. It spells out branch names once, but
// the names of leaves repeat them.
constexpr std::uint64_t kTimes = 64;
constexpr std::uint64_t kLeafCost = 64;
constexpr std::uint64_t kBranchCost = 16;
// A tensor, a storage or another object that the pickle refers to again takes two bytes there, and
// half a kilobyte in a listing.
constexpr std::uint64_t kAgainCost = 1536;
// Listings escape, join and copy names, so their fixed part is smaller.
constexpr std::uint64_t kFixedOfNames = std::uint64_t{16} << 20U;
constexpr auto kTooMany = "pickle: far more leaves than it spells out";

std::string spelled(double number) {
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), number);
  return {digits.begin(), end};
}

// Returns whether Python's repr() puts the text between quotes as it is.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c < 0x7f && c != '\'' && c != '\\'; });
}

// Converts an item of a key that is a tuple as Python's repr() does, if that is short.
std::optional<std::string> repr_of(const Value& item) {
  constexpr std::size_t kMaxText = 64;
  if (item.is(Kind::integer)) return std::to_string(item.integer());
  if (!item.is_text()) return std::nullopt;
  const std::string_view text = item.as<Blob>().bytes.text();
  if (text.size() > kMaxText || !is_plain(text)) return std::nullopt;
  return "'" + std::string(text) + "'";
}

std::optional<std::string> repr_of_tuple(std::span<const Value> items) {
  constexpr std::size_t kMaxItems = 8;
  if (items.size() > kMaxItems) return std::nullopt;
  std::string made = "(";
  for (const Value& item : items) {
    const auto text = repr_of(item);
    if (!text) return std::nullopt;
    made += (made.size() > 1 ? ", " : "") + *text;
  }
  return made + (items.size() == 1 ? ",)" : ")");
}

// Converts a key as Python's str() does, also a tuple of a few integers and texts. Other composite
// keys get their position in the dict.
std::string spelled(const Value& key, std::size_t place) {
  switch (key.kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return key.boolean() ? "True" : "False";
    case Kind::integer:
      return std::to_string(key.integer());
    case Kind::real:
      return spelled(key.as<Real>().number);
    case Kind::tuple: {
      const auto& items = key.as<Sequence>().items;
      if (auto text = repr_of_tuple({items.begin(), items.size()})) return *std::move(text);
      [[fallthrough]];
    }
    default:
      return "#" + std::to_string(place);
  }
}

// Returns the tensor of a leaf or of its parameter, its storage or other object; null of plain values.
const Node* object_of(const Value& leaf) {
  if (const Tensor* tensor = NameIndex::dense(leaf)) return tensor;
  return leaf.is(Kind::storage) || leaf.is(Kind::object) ? &leaf.node() : nullptr;
}

// Returns whether a dict, list or tuple has no items, and nullopt for any other value.
std::optional<bool> is_empty(const Value& value) {
  switch (value.kind()) {
    case Kind::tuple:
    case Kind::list:
      return value.as<Sequence>().items.empty();
    case Kind::dict:
    case Kind::ordered_dict:
      return value.as<Mapping>().items.empty();
    default:
      return std::nullopt;
  }
}

}  // namespace

bool BranchPath::is_branch(const Value& value) { return is_empty(value) == false; }

bool BranchPath::is_empty_branch(const Value& value) { return is_empty(value) == true; }

bool BranchPath::enter(const Node& branch) {
  if (entered_[branch.slot]) return false;
  if (++depth_ > Document::kMaxNesting) throw FormatError(Document::kNestingMessage);
  entered_[branch.slot] = true;
  return true;
}

void BranchPath::leave(const Node& branch) {
  entered_[branch.slot] = false;
  --depth_;
}

NameIndex::NameIndex(const Document& document)
    : leaf_budget_(document.text().size(), kTooMany, kTimes, document.fixed_budget()),
      name_budget_(document.text().size(), kTooMany, kTimes,
                   std::min(kFixedOfNames, document.fixed_budget())),
      seen_(document.slots()),
      branch_path_(document),
      by_name_(document.tensors.size()) {  // other leaves are usually few
  leaves_.reserve(document.tensors.size());
  if (!BranchPath::is_empty_branch(document.root)) add("", document.root);
}

std::optional<std::size_t> NameIndex::find(std::string_view name) const {
  const auto* entry = by_name_.find(name);
  return entry == nullptr ? std::nullopt : std::optional(entry->value);
}

bool NameIndex::is_tensor(const Value& value) {
  if (value.is(Kind::tensor) || value.is(Kind::parameter)) return true;
  if (!value.is(Kind::object)) return false;
  if (value.as<Object>().called != nullptr) return false;
  const Global& made_by = *value.as<Object>().callable;
  return (made_by.module == "torch._utils" || made_by.module == "torch._tensor") &&
         made_by.name.starts_with("_rebuild_");
}

const Tensor* NameIndex::dense(const Value& value) {
  if (value.is(Kind::tensor)) return &value.as<Tensor>();
  return value.is(Kind::parameter) ? dense(value.as<Parameter>().data) : nullptr;
}

void NameIndex::add(std::string_view name, const Value& value) {
  if (!BranchPath::is_branch(value)) {
    add_leaf(name, value);
    if (value.is(Kind::object) && !is_tensor(value)) add_object(value);
    return;
  }
  leaf_budget_.charge(kBranchCost);
  if (!branch_path_.enter(value.node())) return;
  std::size_t place = 0;
  if (value.is_mapping()) {
    for (const auto& [key, item] : DictEntries(value.as<Mapping>())) {
      const bool is_text = key.is_text();
      add(join(name, is_text ? key.as<Blob>().bytes.text() : keep(spelled(key, place))), item);
      ++place;
    }
  } else {
    for (const Value& item : value.as<Sequence>().items) add(join(name, keep(std::to_string(place++))), item);
  }
  branch_path_.leave(value.node());
}

// Adds the tensors inside the object that was the last leaf.
void NameIndex::add_object(const Value& object) {
  const std::size_t position = leaves_.size() - 1;
  visited_.resize(seen_.size());
  path_ = leaves_[position].name;
  search(object, *object.as<Object>().callable, /*again=*/true);
  leaves_[position].within = leaves_.size() - position - 1;
}

// Visits each container once, since objects refer to each other in any way. Values that have a name on
// each path are visited `again`: objects that are leaves, and modules, as by state_dict().
void NameIndex::search(const Value& value, const Global& owner, bool again) {
  if (is_tensor(value)) {
    add_leaf(keep(path_), value);
    leaves_.back().inside = &owner;
    return;
  }
  const bool is_object = value.is(Kind::object);
  if (!is_object && !BranchPath::is_branch(value)) return;
  const bool first = !visited_[value.node().slot];
  visited_[value.node().slot] = true;
  if (!(first || again) || !branch_path_.enter(value.node())) return;
  leaf_budget_.charge(kBranchCost);
  if (is_object) {
    search_object(value.as<Object>());
  } else if (value.is_mapping()) {
    search_mapping(value.as<Mapping>(), owner);
  } else {
    search_items(value.as<Sequence>().items, owner);
  }
  branch_path_.leave(value.node());
}

// Lists only the state_dict() of a module: other attributes often hold the same parameters again.
void NameIndex::search_object(const Object& object) {
  const Global& owner = *object.callable;
  if (const std::optional<Module> module = module_of(object)) {
    search_mapping(*module->parameters, owner);
    search_mapping(*module->buffers, owner, /*again=*/false, module->hidden);
    search_mapping(*module->modules, owner, /*again=*/true);
    return;
  }
  if (object.called != nullptr) search(Value::of(*object.called), owner, /*again=*/false);
  std::size_t place = 0;
  if (object.arguments != nullptr) {
    for (const Value& argument : object.arguments->items) {
      if (argument.is_mapping()) {  // of attributes, as those of a TensorDict
        search_mapping(argument.as<Mapping>(), owner);
      } else {
        search_item(std::to_string(place), argument, owner);
      }
      ++place;
    }
    place = 0;
  }
  for (const Object::Step& step : object.steps) {
    switch (step.effect) {
      case Object::Effect::set_item:
        search_item(
            step.key.is_text() ? std::string(step.key.as<Blob>().bytes.text()) : spelled(step.key, place),
            step.value, owner);
        ++place;
        break;
      case Object::Effect::append:
        search_item(std::to_string(place++), step.value, owner);
        break;
      case Object::Effect::state:
        search_state(step.value, owner);
        break;
    }
  }
}

// A state is a dict of attributes, or a pair of dicts if the class has slots.
void NameIndex::search_state(const Value& state, const Global& owner) {
  if (state.is_mapping()) return search_mapping(state.as<Mapping>(), owner);
  const auto is_part = [](const Value& part) { return part.is_mapping() || part.is(Kind::none); };
  if (state.is(Kind::tuple) && state.as<Sequence>().items.size() == 2 &&
      std::ranges::all_of(state.as<Sequence>().items, is_part)) {
    for (const Value& part : state.as<Sequence>().items) search_state(part, owner);
  } else {
    search(state, owner, /*again=*/false);
  }
}

void NameIndex::search_mapping(const Mapping& mapping, const Global& owner, bool again,
                               const Sequence* hidden) {
  leaf_budget_.charge(mapping.items.size());
  std::set<std::string_view> left_out;
  if (hidden != nullptr) {
    leaf_budget_.charge(hidden->items.size());
    for (const Value& name : hidden->items)
      if (name.is_text()) left_out.insert(name.as<Blob>().bytes.text());
  }
  std::size_t place = 0;
  for (const auto& [key, item] : DictEntries(mapping)) {
    const std::size_t here = place++;
    if (key.is_text()) {
      const std::string_view text = key.as<Blob>().bytes.text();
      if (!left_out.contains(text)) search_item(text, item, owner, again);
    } else {
      search_item(spelled(key, here), item, owner, again);
    }
  }
}

void NameIndex::search_items(const ArenaList<Value>& items, const Global& owner) {
  leaf_budget_.charge(items.size());
  std::size_t place = 0;
  for (const Value& item : items) search_item(std::to_string(place++), item, owner);
}

void NameIndex::search_item(std::string_view key, const Value& value, const Global& owner, bool again) {
  if (!value.is_node()) return;
  name_budget_.charge(key.size());
  const std::size_t length = path_.size();
  if (!path_.empty()) path_ += '.';
  path_ += key;
  search(value, owner, again);
  path_.resize(length);
}

// Finds what state_dict() walks through, in the attributes of an object.
std::optional<NameIndex::Module> NameIndex::module_of(const Object& object) {
  Module found;
  const auto look = [&](const Value& attributes) {
    if (!attributes.is_mapping()) return;
    leaf_budget_.charge(attributes.as<Mapping>().items.size());
    for (const auto& [key, item] : attributes.as<Mapping>().items) {
      if (key.is_text()) found.note(key.as<Blob>().bytes.text(), item);
    }
  };
  if (object.arguments != nullptr) std::ranges::for_each(object.arguments->items, look);  // torch.fx
  for (const Object::Step& step : object.steps) {
    if (step.effect == Object::Effect::state) look(step.value);
  }
  const bool is_module = found.parameters != nullptr && found.buffers != nullptr && found.modules != nullptr;
  return is_module ? std::optional(found) : std::nullopt;
}

void NameIndex::Module::note(std::string_view name, const Value& attribute) {
  if (attribute.is(Kind::set) && name == "_non_persistent_buffers_set") hidden = &attribute.as<Sequence>();
  if (!attribute.is_mapping()) return;
  if (name == "_parameters") parameters = &attribute.as<Mapping>();
  if (name == "_buffers") buffers = &attribute.as<Mapping>();
  if (name == "_modules") modules = &attribute.as<Mapping>();
}

void NameIndex::add_leaf(std::string_view name, const Value& value) {
  leaf_budget_.charge(kLeafCost);
  // pickle writes an integer again wherever it is used.
  if (value.is(Kind::big_integer)) leaf_budget_.charge(value.as<Blob>().bytes.size());
  if (const Node* object = object_of(value)) {
    if (seen_[object->slot]) leaf_budget_.charge(kAgainCost);
    seen_[object->slot] = true;
  }
  std::string_view free = name.data() == nullptr ? std::string_view("") : name;
  for (int i = 2; !by_name_.insert(free, leaves_.size()).second; ++i) {
    free = keep(std::string(name) + "~" + std::to_string(i));
  }
  leaves_.push_back({free, value});
}

std::string_view NameIndex::join(std::string_view branch, std::string_view key) {
  if (branch_path_.depth() == 1) return key;
  std::string joined;
  joined.reserve(branch.size() + 1 + key.size());
  joined.append(branch).append(1, '.').append(key);
  return keep(std::move(joined));
}

std::string_view NameIndex::keep(std::string name) {
  name_budget_.charge(name.size());
  return kept_.emplace_back(std::move(name));
}

}  // namespace zerocopy
