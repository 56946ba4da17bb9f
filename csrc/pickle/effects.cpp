#include "pickle/effects.h"

#include <vector>

namespace zerocopy {
namespace {

constexpr NamePair kOrderedDict{"collections", "OrderedDict"};
constexpr NamePair kParameter{"torch.nn.parameter", "Parameter"};
// (function, class, arguments, state): calls the function and sets attributes of the result.
constexpr NamePair kRebuildFromType{"torch._tensor", "_rebuild_from_type_v2"};

NamePair name_of(const Global& global) { return {global.module, global.name}; }

// Visits each reachable node once, without recursion.
class Visitor {
 public:
  explicit Visitor(const Document& document) : seen_(document.slots()) {}

  Effects run(const Value& root) {
    plan(root);
    while (!planned_.empty()) {
      const Value value = planned_.back();
      planned_.pop_back();
      visit(value);
    }
    return std::move(effects_);
  }

 private:
  void plan(const Value& value) {
    if (!value.is_node() || seen_[value.node().slot]) return;
    seen_[value.node().slot] = true;
    planned_.push_back(value);
  }

  void visit(const Value& value) {
    switch (value.kind()) {
      case Kind::tuple:
      case Kind::list:
      case Kind::set:
      case Kind::frozenset:
        for (const Value& item : value.as<Sequence>().items) plan(item);
        return;
      case Kind::dict:
      case Kind::ordered_dict:
      case Kind::counter:
        return visit_mapping(value.as<Mapping>());
      case Kind::parameter:
        plan(value.as<Parameter>().data);
        return set_attributes(kParameter, value.as<Parameter>().state);
      case Kind::object:
        return visit_object(value.as<Object>());
      default:
        return;
    }
  }

  void visit_mapping(const Mapping& mapping) {
    for (const auto& [key, value] : mapping.items) {
      plan(key);
      plan(value);
    }
    set_attributes(kOrderedDict, mapping.state);
  }

  void visit_object(const Object& object) {
    const NamePair name = name_of(*object.callable);
    (object.call == Object::Call::reduce ? effects_.called : effects_.created).insert(name);
    if (object.called != nullptr) plan(Value::of(*object.called));
    const auto& arguments = object.arguments->items;
    for (const Value& argument : arguments) plan(argument);
    if (name == kRebuildFromType && arguments.size() == 4) rebuild(arguments[0], arguments[1], arguments[3]);
    for (const Object::Step& step : object.steps) {
      effects_.changed.insert(name);
      plan(step.key);
      plan(step.value);
    }
  }

  void rebuild(const Value& function, const Value& made, const Value& state) {
    if (!function.is(Kind::global) || !made.is(Kind::global)) {
      effects_.odd = true;
      return;
    }
    effects_.called.insert(name_of(function.as<Global>()));
    set_attributes(name_of(made.as<Global>()), state);
  }

  // `state` is a dict of attributes, or a tuple of two dicts: attributes and slots.
  void set_attributes(const NamePair& target, const Value& state) {
    plan(state);
    if (state.is(Kind::tuple)) {
      for (const Value& part : state.as<Sequence>().items) set_names(target, part);
    } else {
      set_names(target, state);
    }
  }

  void set_names(const NamePair& target, const Value& names) {
    if (!names.is_mapping()) return;  // None, or a value that every loader refuses
    for (const auto& [key, value] : names.as<Mapping>().items) {
      if (key.is_text()) {
        effects_.attributes.insert({target, key.as<Blob>().bytes.text()});
      } else {
        effects_.odd = true;
      }
    }
  }

  std::vector<bool> seen_;
  std::vector<Value> planned_;
  Effects effects_;
};

}  // namespace

Effects effects_of(const Document& document) { return Visitor(document).run(document.root); }

}  // namespace zerocopy
