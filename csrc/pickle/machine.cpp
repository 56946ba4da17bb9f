#include "pickle/machine.h"

#include <algorithm>

#include "pickle/keys.h"
#include "pickle/memo.h"
#include "pickle/opcode.h"
#include "pickle/rebuild.h"
#include "pickle/stack.h"
#include "pickle/storages.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

constexpr std::uint16_t kMaxDepth = 1000;

class Machine {
 public:
  Machine(Region pickle, const PickleForm& form)
      : document_(std::move(pickle), form.fixed_budget),
        opcodes_left_(form.most_opcodes(document_.text().size())),
        storages_(form.ids),
        take_modules_(form.take_modules) {}

  Document run() {
    try {
      for (decoder_.next(instruction_); instruction_.opcode != Opcode::stop; decoder_.next(instruction_)) {
        if (opcodes_left_-- == 0) fail("more opcodes than its deflated bytes account for");
        step();
      }
      document_.root = pop();
      document_.check_repeated_work();
    } catch (const StackError& error) {
      fail(error.what());
    }
    return std::move(document_);
  }

 private:
  void step();

  void push(const Value& value) { stack_.push(value); }
  Value pop() { return stack_.pop(); }
  std::uint64_t index() const { return static_cast<std::uint64_t>(instruction_.number); }

  void memoize(bool stored) const;
  void recall();

  void make_blob(Kind kind);
  void make_text();
  void make_real();
  void make_integer();
  void make_sequence(Kind kind, std::span<const Value> items);
  void make_global(std::string_view module, std::string_view name);
  void make_stack_global();
  void load_persistent(const Value& id);

  void append(std::span<const Value> items);
  void add_items(std::span<const Value> items);
  void set_items(std::span<const Value> items);
  void build(const Value& state);
  void call(Object::Call how);

  Object::Step& add_step(Object& object, Object::Effect effect, const Value& value);
  void contain(Node& outer, const Value& inner) const;
  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void refuse(const std::string& reason) const;
  std::string where() const { return " (at " + hex(instruction_.offset) + ")"; }

  Document document_;
  std::uint64_t opcodes_left_;
  Decoder decoder_{document_.text()};
  Instruction instruction_{};
  Memo<Value> memo_{document_.text().size()};
  Stack stack_;
  const Value empty_tuple_ = Value::of(document_.make<Sequence>(Kind::tuple));  // shared
  StorageTable storages_;
  bool take_modules_;
};

void Machine::fail(const std::string& reason) const { throw FormatError("pickle: " + reason + where()); }

void Machine::refuse(const std::string& reason) const { throw RefusedError("pickle: " + reason + where()); }

void Machine::step() {
  switch (instruction_.opcode) {
    case Opcode::proto:  // the number is ignored, since opcodes are unambiguous
    case Opcode::frame:
      return;

    // Stack and memo
    case Opcode::mark:
      return stack_.mark();
    case Opcode::binput:
    case Opcode::long_binput:
      return memoize(memo_.put(index(), stack_.top()));
    case Opcode::memoize:
      return memoize(memo_.append(stack_.top()));
    case Opcode::binget:
    case Opcode::long_binget:
      return recall();

    // New values
    case Opcode::none:
      return push(Value{});
    case Opcode::newtrue:
      return push(Value::of(true));
    case Opcode::newfalse:
      return push(Value::of(false));
    case Opcode::binint:
    case Opcode::binint1:
    case Opcode::binint2:
      return push(document_.integer(instruction_.number));
    case Opcode::binfloat:
      return make_real();
    case Opcode::long1:
    case Opcode::long4:
      return make_integer();
    case Opcode::binunicode:
    case Opcode::short_binunicode:
    case Opcode::binunicode8:
      return make_text();
    case Opcode::binstring:
    case Opcode::short_binstring:
      return make_blob(Kind::byte_string);
    case Opcode::binbytes:
    case Opcode::short_binbytes:
    case Opcode::binbytes8:
      return make_blob(Kind::bytes);
    case Opcode::bytearray8:
      return make_blob(Kind::byte_array);
    case Opcode::empty_tuple:
      return push(empty_tuple_);
    case Opcode::tuple1:
      return make_sequence(Kind::tuple, stack_.take(1));
    case Opcode::tuple2:
      return make_sequence(Kind::tuple, stack_.take(2));
    case Opcode::tuple3:
      return make_sequence(Kind::tuple, stack_.take(3));
    case Opcode::tuple:
      return make_sequence(Kind::tuple, stack_.take_since_mark());
    case Opcode::frozenset:
      return make_sequence(Kind::frozenset, stack_.take_since_mark());
    case Opcode::empty_list:
      return push(Value::of(document_.make<Sequence>(Kind::list)));
    case Opcode::empty_set:
      return push(Value::of(document_.make<Sequence>(Kind::set)));
    case Opcode::empty_dict:
      return push(Value::of(document_.make<Mapping>(Kind::dict)));
    case Opcode::global:
      return make_global(instruction_.bytes.text(), instruction_.more.text());
    case Opcode::stack_global:
      return make_stack_global();
    case Opcode::binpersid:
      return load_persistent(pop());

    // Changes of values, and calls
    case Opcode::append:
      return append(stack_.take(1));
    case Opcode::appends:
      return append(stack_.take_since_mark());
    case Opcode::additems:
      return add_items(stack_.take_since_mark());
    case Opcode::setitem:
      return set_items(stack_.take(2));
    case Opcode::setitems:
      return set_items(stack_.take_since_mark());
    case Opcode::build:
      return build(pop());
    case Opcode::reduce:
      return call(Object::Call::reduce);
    case Opcode::newobj:
      return call(Object::Call::create);

    default:
      reject(instruction_);
  }
}

void Machine::memoize(bool stored) const {
  if (!stored) fail("memo index " + std::to_string(index()) + " is beyond the pickle's length");
}

void Machine::recall() {
  const Value* value = memo_.get(index());
  if (value == nullptr) fail("memo entry " + std::to_string(index()) + " is not set");
  push(*value);
}

void Machine::make_blob(Kind kind) {
  auto& blob = document_.make<Blob>(kind);
  blob.bytes = instruction_.bytes;
  push(Value::of(blob));
}

void Machine::make_text() {
  if (!is_utf8(instruction_.bytes, Surrogates::accept)) fail("a string that is not UTF-8");
  make_blob(Kind::text);
}

void Machine::make_real() {
  auto& real = document_.make<Real>(Kind::real);
  real.number = instruction_.real;
  push(Value::of(real));
}

void Machine::make_integer() {
  const ByteSpan bytes = instruction_.bytes;
  if (bytes.size() > sizeof(std::int64_t)) {
    make_blob(Kind::big_integer);
    return;
  }
  push(document_.integer(decode_long(bytes)));
}

void Machine::make_sequence(Kind kind, std::span<const Value> items) {
  auto& sequence = document_.make<Sequence>(kind);
  sequence.items.assign(document_.arena(), items);
  for (const Value& item : items) {
    if (kind == Kind::frozenset) check_key(document_, item, instruction_.offset);
    contain(sequence, item);
  }
  push(Value::of(sequence));
}

void Machine::make_global(std::string_view module, std::string_view name) {
  if (module.size() > kMaxGlobalName || name.size() > kMaxGlobalName) fail("a name longer than 255 bytes");
  auto& global = document_.make<Global>(Kind::global);
  const KnownGlobal known = known_global(module, name);
  global.module = module;
  global.name = name;
  global.action = known.action;
  global.dtype = known.dtype;
  if (known.action == Action::external) document_.externals.push_back(&global);
  push(Value::of(global));
}

void Machine::make_stack_global() {
  const Value name = pop();
  const Value module = pop();
  if (!name.is_text() || !module.is_text()) fail("a global's name is not a string");
  make_global(module.as<Blob>().bytes.text(), name.as<Blob>().bytes.text());
}

void Machine::load_persistent(const Value& id) {
  Global* module = take_modules_ ? class_of_module(id) : nullptr;
  push(module != nullptr ? Value::of(*module)
                         : Value::of(storages_.load(document_, id, instruction_.offset)));
}

void Machine::append(std::span<const Value> items) {
  const Value target = stack_.top();
  if (target.is(Kind::object)) {
    if (items.empty()) refuse("nothing appended to an object");  // the class may not even be a list
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
  if (items.empty() && target.is(Kind::object)) refuse("nothing set in an object");
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
  if (!callable.is(Kind::global)) refuse("a call of a value that is not a global");
  if (!arguments.is(Kind::tuple)) fail("the arguments of a call are not a tuple");
  const auto& global = callable.as<Global>();
  if (global.action != Action::external) {
    if (how != Object::Call::reduce) refuse("NEWOBJ of " + quote(global.name) + ", which needs a call");
    push(call_native(document_, global, arguments.as<Sequence>(), instruction_.offset));
    return;
  }
  if (global.module.starts_with("torch.")) document_.charge_rebuild(global, arguments.as<Sequence>());
  auto& object = document_.make<Object>(Kind::object);
  object.callable = &global;
  object.call = how;
  object.arguments = &arguments.as<Sequence>();
  contain(object, arguments);
  push(Value::of(object));
}

Object::Step& Machine::add_step(Object& object, Object::Effect effect, const Value& value) {
  contain(object, value);
  return object.steps.push_back(document_.arena(), {effect, Value{}, value});
}

void Machine::contain(Node& outer, const Value& inner) const {
  if (!inner.is_node()) return;
  outer.depth = std::max(outer.depth, static_cast<std::uint16_t>(inner.node().depth + 1));
  if (outer.depth > kMaxDepth) fail("values nest deeper than 1000");
}

}  // namespace

Document read_pickle(Region pickle, PickleForm form) { return Machine(std::move(pickle), form).run(); }

}  // namespace zerocopy
