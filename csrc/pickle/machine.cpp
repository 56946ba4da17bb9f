#include "pickle/machine.h"

#include "pickle/interpreter.h"
#include "pickle/keys.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

constexpr std::uint16_t kMaxDepth = 1000;

}  // namespace

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
      return step_for_stubs();
  }
}

void Machine::memoize(bool stored) {
  last_call_ = nullptr;
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
  Global* module = stubs_ ? class_of_module(id) : nullptr;
  push(module != nullptr ? Value::of(*module)
                         : Value::of(storages_.load(document_, id, instruction_.offset)));
}

void Machine::contain(Node& outer, const Value& inner) const {
  if (!inner.is_node()) return;
  outer.depth = std::max(outer.depth, static_cast<std::uint16_t>(inner.node().depth + 1));
  if (outer.depth > kMaxDepth) fail("values nest deeper than 1000");
}

Document read_pickle(Region pickle, PickleForm form) {
  Document document(std::move(pickle), form.fixed_budget);
  document.root = read_pickle(document, document.text(), form);
  document.check_repeated_work();
  return document;
}

Value read_pickle(Document& document, ByteSpan pickle, const PickleForm& form) {
  return Machine(document, pickle, form).run();
}

}  // namespace zerocopy
