#include "pickle/machine.h"

#include <algorithm>

#include "memory/utf8.h"
#include "pickle/keys.h"
#include "pickle/memo.h"
#include "pickle/opcode.h"
#include "pickle/rebuild.h"
#include "pickle/storages.h"

namespace zerocopy {
namespace {

constexpr std::uint16_t kMaxDepth = 1000;
constexpr std::size_t kMaxStack = 1'000'000;

class Machine {
 public:
  explicit Machine(Region pickle)
      : document_(std::move(pickle)), decoder_(document_.pickle()), memo_(document_.pickle().size()) {}

  Document run() {
    do {
      instruction_ = decoder_.next();
    } while (step());
    document_.root = pop();
    return std::move(document_);
  }

 private:
  // One instruction: those that move values, those that make them, those that change or call.
  // Each returns false when the opcode is not one of its own; step() only at STOP.
  bool step();
  bool move();
  bool make();
  bool change();
  [[noreturn]] void reject() const;

  void push(const Value& value) {
    if (stack_.size() >= kMaxStack) fail("more than a million values on the stack");
    stack_.push_back(value);
  }
  Value pop() {
    const Value value = top();
    stack_.pop_back();
    return value;
  }
  // Values below the last mark are out of reach.
  const Value& top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("stack underflow");
    return stack_.back();
  }
  std::size_t pop_mark() {
    if (marks_.empty()) fail("no mark on the stack");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }
  std::span<const Value> above(std::size_t mark) const { return std::span(stack_).subspan(mark); }

  void make_blob(Kind kind);
  void make_text(Kind kind);
  void make_integer();
  void make_sequence(Kind kind, std::size_t begin);
  void make_tuple(std::size_t count);
  void make_global(std::string_view module, std::string_view name);
  void make_stack_global();

  void append(std::span<const Value> items);
  void add_items(std::span<const Value> items);
  void set_items(std::span<const Value> items);
  void build(const Value& state);
  void call(Object::Call how);

  // Items above the last mark go to the value below it.
  template <typename Apply>
  void apply_since_mark(Apply apply) {
    const std::size_t begin = pop_mark();
    const std::vector<Value> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    apply(items);
  }

  Object::Step& add_step(Object& object, Object::Effect effect, const Value& value);
  void contain(Node& outer, const Value& inner) const;
  [[noreturn]] void fail(const std::string& reason) const {
    throw FormatError("pickle: " + reason + where());
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw RefusedError("pickle: " + reason + where());
  }
  std::string where() const { return " (at " + hex(instruction_.offset) + ")"; }

  Document document_;
  Decoder decoder_;
  Instruction instruction_{};
  Memo<Value> memo_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  StorageTable storages_;
};

bool Machine::step() {
  if (instruction_.opcode == Opcode::stop) return false;
  if (!move() && !make() && !change()) reject();
  return true;
}

// ----------------------------------------------------------------------- values already there

bool Machine::move() {
  const auto index = static_cast<std::uint64_t>(instruction_.number);
  switch (instruction_.opcode) {
    case Opcode::proto:  // the number is not believed: opcodes speak for themselves
    case Opcode::frame:
      return true;
    case Opcode::mark:
      if (marks_.size() >= kMaxStack) fail("more than a million marks");
      marks_.push_back(stack_.size());
      return true;
    case Opcode::binput:
    case Opcode::long_binput:
      if (!memo_.put(index, top())) fail("memo index " + std::to_string(index) + " is absurd");
      return true;
    case Opcode::memoize:
      if (!memo_.append(top())) fail("the memo is too large");
      return true;
    case Opcode::binget:
    case Opcode::long_binget: {
      const Value* value = memo_.get(index);
      if (value == nullptr) fail("memo entry " + std::to_string(index) + " was never put");
      push(*value);
      return true;
    }
    default:
      return false;
  }
}

// -------------------------------------------------------------------------------- new values

bool Machine::make() {
  switch (instruction_.opcode) {
    case Opcode::none:
      push(Value{});
      return true;
    case Opcode::newtrue:
    case Opcode::newfalse:
      push(Value::of(instruction_.opcode == Opcode::newtrue));
      return true;
    case Opcode::binint:
    case Opcode::binint1:
    case Opcode::binint2:
      push(Value::of(instruction_.number));
      return true;
    case Opcode::binfloat:
      push(Value::of(instruction_.real));
      return true;
    case Opcode::long1:
    case Opcode::long4:
      make_integer();
      return true;
    case Opcode::binunicode:
    case Opcode::short_binunicode:
    case Opcode::binunicode8:
      make_text(Kind::text);
      return true;
    case Opcode::binstring:
    case Opcode::short_binstring:
      make_blob(Kind::byte_string);
      return true;
    case Opcode::binbytes:
    case Opcode::short_binbytes:
    case Opcode::binbytes8:
      make_blob(Kind::bytes);
      return true;
    case Opcode::bytearray8:
      make_blob(Kind::byte_array);
      return true;
    case Opcode::empty_tuple:
      make_tuple(0);
      return true;
    case Opcode::tuple1:
      make_tuple(1);
      return true;
    case Opcode::tuple2:
      make_tuple(2);
      return true;
    case Opcode::tuple3:
      make_tuple(3);
      return true;
    case Opcode::tuple:
      make_sequence(Kind::tuple, pop_mark());
      return true;
    case Opcode::frozenset:
      make_sequence(Kind::frozenset, pop_mark());
      return true;
    case Opcode::empty_list:
      push(Value::of(document_.make<Sequence>(Kind::list)));
      return true;
    case Opcode::empty_set:
      push(Value::of(document_.make<Sequence>(Kind::set)));
      return true;
    case Opcode::empty_dict:
      push(Value::of(document_.make<Mapping>(Kind::dict)));
      return true;
    case Opcode::global:
      make_global(instruction_.bytes.text(), instruction_.more.text());
      return true;
    case Opcode::stack_global:
      make_stack_global();
      return true;
    default:
      return false;
  }
}

void Machine::make_blob(Kind kind) {
  auto& blob = document_.make<Blob>(kind);
  blob.bytes = instruction_.bytes;
  push(Value::of(blob));
}

void Machine::make_text(Kind kind) {
  if (!is_utf8(instruction_.bytes, Surrogates::accept)) fail("a string that is not UTF-8");
  make_blob(kind);
}

void Machine::make_integer() {
  const ByteSpan bytes = instruction_.bytes;
  if (bytes.size() > sizeof(std::int64_t)) {
    make_blob(Kind::big_integer);
    return;
  }
  // Two's complement of any length: start from the sign and shift the bytes in from the top.
  const bool negative = !bytes.empty() && (bytes[bytes.size() - 1] & std::byte{0x80}) != std::byte{0};
  std::uint64_t number = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    number = (number << 8U) | std::to_integer<std::uint64_t>(bytes[i]);
  }
  push(Value::of(static_cast<std::int64_t>(number)));
}

void Machine::make_sequence(Kind kind, std::size_t begin) {
  auto& sequence = document_.make<Sequence>(kind);
  const auto items = above(begin);
  sequence.items.assign(items.begin(), items.end());
  for (const Value& item : items) {
    if (kind == Kind::frozenset) check_key(item, instruction_.offset);
    contain(sequence, item);
  }
  stack_.resize(begin);
  push(Value::of(sequence));
}

void Machine::make_tuple(std::size_t count) {
  const std::size_t reachable = stack_.size() - (marks_.empty() ? 0 : marks_.back());
  if (count > reachable) fail("stack underflow");
  make_sequence(Kind::tuple, stack_.size() - count);
}

void Machine::make_global(std::string_view module, std::string_view name) {
  auto& global = document_.make<Global>(Kind::global);
  const Known known = known_global(module, name);
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
  if (!name.is_text() || !module.is_text()) fail("a global whose name is no string");
  make_global(module.as<Blob>().bytes.text(), name.as<Blob>().bytes.text());
}

// -------------------------------------------------------------------------- changes and calls

bool Machine::change() {
  switch (instruction_.opcode) {
    case Opcode::append: {
      const Value item = pop();
      append({&item, 1});
      return true;
    }
    case Opcode::appends:
      apply_since_mark([this](std::span<const Value> items) { append(items); });
      return true;
    case Opcode::additems:
      apply_since_mark([this](std::span<const Value> items) { add_items(items); });
      return true;
    case Opcode::setitem: {
      const Value value = pop();
      const Value key = pop();
      set_items(std::array{key, value});
      return true;
    }
    case Opcode::setitems:
      apply_since_mark([this](std::span<const Value> items) { set_items(items); });
      return true;
    case Opcode::build:
      build(pop());
      return true;
    case Opcode::reduce:
      call(Object::Call::reduce);
      return true;
    case Opcode::newobj:
      call(Object::Call::create);
      return true;
    case Opcode::binpersid:
      push(Value::of(storages_.load(document_, pop(), instruction_.offset)));
      return true;
    default:
      return false;
  }
}

void Machine::append(std::span<const Value> items) {
  const Value target = top();
  if (target.is(Kind::object)) {
    for (const Value& item : items) add_step(target.as<Object>(), Object::Effect::append, item);
    return;
  }
  if (!target.is(Kind::list)) refuse("items appended to something that is no list");
  auto& list = target.as<Sequence>();
  for (const Value& item : items) {
    list.items.push_back(item);
    contain(list, item);
  }
}

void Machine::add_items(std::span<const Value> items) {
  const Value target = top();
  if (!target.is(Kind::set)) refuse("items added to something that is no set");
  for (const Value& item : items) {
    check_key(item, instruction_.offset);
    target.as<Sequence>().items.push_back(item);
    contain(*target.node, item);
  }
}

void Machine::set_items(std::span<const Value> items) {
  const Value target = top();
  if (items.size() % 2 != 0) fail("a key without a value");
  if (!target.is_mapping() && !target.is(Kind::object)) {
    refuse("items set on something that is no dict");
  }
  for (std::size_t i = 0; i < items.size(); i += 2) {
    check_key(items[i], instruction_.offset);
    if (target.is(Kind::object)) {
      add_step(target.as<Object>(), Object::Effect::set_item, items[i + 1]).key = items[i];
      continue;
    }
    target.as<Mapping>().items.emplace_back(items[i], items[i + 1]);
    contain(*target.node, items[i]);
    contain(*target.node, items[i + 1]);
  }
}

// OrderedDict's attributes (state_dict puts _metadata there), or the state of an allowed class.
void Machine::build(const Value& state) {
  const Value target = top();
  if (target.is(Kind::object)) {
    add_step(target.as<Object>(), Object::Effect::state, state);
    return;
  }
  if (!target.is(Kind::ordered_dict)) refuse("state set on something that takes none");
  auto& mapping = target.as<Mapping>();
  if (!state.is(Kind::dict) || !mapping.state.is(Kind::none)) {
    refuse("the state of an OrderedDict is not one dict");
  }
  mapping.state = state;
  contain(mapping, state);
}

void Machine::call(Object::Call how) {
  const Value arguments = pop();
  const Value callable = pop();
  if (!callable.is(Kind::global)) refuse("a call of something that is no global");
  if (!arguments.is(Kind::tuple)) fail("a call whose arguments are no tuple");
  const auto& global = callable.as<Global>();
  if (global.action != Action::external) {
    if (how != Object::Call::reduce) refuse("a new " + quote(global.name) + " that is not called");
    push(call_native(document_, global, arguments.as<Sequence>(), instruction_.offset));
    return;
  }
  auto& object = document_.make<Object>(Kind::object);
  object.callable = &global;
  object.call = how;
  object.arguments = &arguments.as<Sequence>();
  contain(object, arguments);
  push(Value::of(object));
}

Object::Step& Machine::add_step(Object& object, Object::Effect effect, const Value& value) {
  contain(object, value);
  return object.steps.emplace_back(effect, Value{}, value);
}

void Machine::contain(Node& outer, const Value& inner) const {
  if (inner.kind <= Kind::real) return;
  outer.depth = std::max(outer.depth, static_cast<std::uint16_t>(inner.node->depth + 1));
  if (outer.depth > kMaxDepth) fail("values nest deeper than 1000");
}

void Machine::reject() const {
  switch (instruction_.opcode) {
    case Opcode::inst:
    case Opcode::obj:
    case Opcode::newobj_ex:
    case Opcode::ext1:
    case Opcode::ext2:
    case Opcode::ext4:
    case Opcode::text_persid:
      refuse("opcode " + hex(static_cast<std::uint8_t>(instruction_.opcode)) +
             ", which names or calls code another way");
    case Opcode::next_buffer:
    case Opcode::readonly_buffer:
      fail("an out-of-band buffer, and there are none");
    default:
      throw UnsupportedError("pickle: opcode " + hex(static_cast<std::uint8_t>(instruction_.opcode)) +
                             ", which torch.save never writes" + where());
  }
}

}  // namespace

Document read_pickle(Region pickle) { return Machine(std::move(pickle)).run(); }

}  // namespace zerocopy
