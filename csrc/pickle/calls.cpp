#include "pickle/interpreter.h"
#include "pickle/keys.h"
#include "pickle/rebuild.h"

namespace zerocopy {

// Calls that only a stub can stand for, and the opcodes that cloudpickle and dill write around them.
void Machine::step_for_stubs() {
  if (!stubs_) reject(instruction_);
  switch (instruction_.opcode) {
    case Opcode::pop:
      return drop();
    case Opcode::pop_mark:
      stack_.take_since_mark();
      return;
    case Opcode::dup:
      return push(stack_.top());
    case Opcode::inst:
      make_sequence(Kind::tuple, stack_.take_since_mark());
      make_global(instruction_.bytes.text(), instruction_.more.text());
      {
        const Value callable = pop();
        return call(callable, pop(), Object::Call::reduce);
      }
    case Opcode::obj: {
      const auto items = stack_.take_since_mark();
      if (items.empty()) fail("a call of nothing");
      const Value callable = items.front();
      make_sequence(Kind::tuple, items.subspan(1));
      return call(callable, pop(), Object::Call::reduce);
    }
    case Opcode::newobj_ex:  // class, arguments, keyword arguments
      make_sequence(Kind::tuple, stack_.take(2));
      return call(Object::Call::create_with_keywords);
    default:
      reject(instruction_);
  }
}

// pickle calls a setter of state as setter(object, state), and drops what it returns. It also drops
// getattr(object, name), where the object holds that bound method itself: the state has made it already.
void Machine::drop() {
  if (stack_.is_at_mark()) {
    stack_.take_since_mark();
    return;
  }
  const Value dropped = pop();
  if (!dropped.is(Kind::object) || &dropped.node() != last_call_) return;
  const auto& arguments = dropped.as<Object>().arguments->items;
  if (arguments.size() != 2 || !arguments[0].is(Kind::object) || arguments[1].is(Kind::text)) return;
  document_.charge_state(arguments[1]);
  add_step(arguments[0].as<Object>(), Object::Effect::state, arguments[1]);
}

void Machine::append(std::span<const Value> items) {
  const Value target = stack_.top();
  if (target.is(Kind::object)) {
    // The class may not even be a list.
    if (items.empty() && !stubs_) refuse("nothing appended to an object");
    for (const Value& item : items) add_step(target.as<Object>(), Object::Effect::append, item);
    return;
  }
  if (!target.is(Kind::list)) refuse("items appended to a value that is not a list");
  auto& list = target.as<Sequence>();
  for (const Value& item : items) {
    list.items.push_back(document_.arena(), item);
    contain(list, item);
  }
}

void Machine::add_items(std::span<const Value> items) {
  const Value target = stack_.top();
  if (stubs_ && target.is(Kind::object)) return append(items);
  if (!target.is(Kind::set)) refuse("items added to a value that is not a set");
  for (const Value& item : items) {
    check_key(document_, item, instruction_.offset);
    target.as<Sequence>().items.push_back(document_.arena(), item);
    contain(target.node(), item);
  }
}

void Machine::set_items(std::span<const Value> items) {
  const Value target = stack_.top();
  if (items.size() % 2 != 0) fail("a key without a value");
  // The class may not even be a dict.
  if (items.empty() && target.is(Kind::object) && !stubs_) refuse("nothing set in an object");
  if (!target.is_mapping() && !target.is(Kind::object)) refuse("items set on a value that is not a dict");
  for (std::size_t i = 0; i < items.size(); i += 2) {
    check_key(document_, items[i], instruction_.offset);
    if (target.is(Kind::object)) {
      add_step(target.as<Object>(), Object::Effect::set_item, items[i + 1]).key = items[i];
      continue;
    }
    target.as<Mapping>().items.push_back(document_.arena(), {items[i], items[i + 1]});
    contain(target.node(), items[i]);
    contain(target.node(), items[i + 1]);
  }
}

// Sets OrderedDict's attributes (state_dict's _metadata), or the state of an allowed class.
void Machine::build(const Value& state) {
  const Value target = stack_.top();
  document_.charge_state(state);
  if (target.is(Kind::object)) {
    add_step(target.as<Object>(), Object::Effect::state, state);
    return;
  }
  if (!target.is(Kind::ordered_dict)) refuse("state set on a value that has none");
  auto& mapping = target.as<Mapping>();
  if (!state.is(Kind::dict) || !mapping.state.is(Kind::none)) {
    refuse("the state of an OrderedDict is not one dict");
  }
  mapping.state = state;
  contain(mapping, state);
}

void Machine::call(Object::Call how) {
  // An enumeration passes its value without a tuple.
  const bool bare = storages_.of_script() && !stack_.top().is(Kind::tuple);
  if (bare) make_sequence(Kind::tuple, stack_.take(1));
  const Value arguments = pop();
  const Value callable = pop();
  call(callable, arguments, how);
}

void Machine::call(const Value& callable, const Value& arguments, Object::Call how) {
  Object* called = stubs_ && callable.is(Kind::object) ? &callable.as<Object>() : nullptr;
  if (called == nullptr && !callable.is(Kind::global)) refuse("a call of a value that is not a global");
  if (!arguments.is(Kind::tuple)) fail("the arguments of a call are not a tuple");
  const auto& items = arguments.as<Sequence>();
  const Global& global = called != nullptr ? *called->callable : callable.as<Global>();
  if (called == nullptr && global.action != Action::external && !needs_stub(global, items, how)) {
    if (how != Object::Call::reduce) refuse("NEWOBJ of " + quote(global.name) + ", which needs a call");
    push(call_native(document_, global, items, instruction_.offset));
    return;
  }
  if (global.module.starts_with("torch.")) document_.charge_rebuild(global, items);
  auto& object = document_.make<Object>(Kind::object);
  object.callable = &global;
  object.called = called;
  object.call = how;
  object.arguments = &items;
  contain(object, arguments);
  contain(object, callable);
  last_call_ = &object;
  push(Value::of(object));
}

// Returns whether the machine cannot make the result of a native global, and a stub is wanted then.
bool Machine::needs_stub(const Global& global, const Sequence& arguments, Object::Call how) const {
  if (!stubs_) return false;
  if (how != Object::Call::reduce) return true;
  switch (global.action) {
    case Action::dtype:
    case Action::storage_class:
    case Action::parameter_class:
      return true;
    case Action::rebuild_parameter:  // takes objects
    case Action::rebuild_parameter_with_state:
      return false;
    default:
      return std::ranges::any_of(arguments.items, [](const Value& item) { return item.is(Kind::object); });
  }
}

Object::Step& Machine::add_step(Object& object, Object::Effect effect, const Value& value) {
  contain(object, value);
  return object.steps.push_back(document_.arena(), {effect, Value{}, value});
}

}  // namespace zerocopy
