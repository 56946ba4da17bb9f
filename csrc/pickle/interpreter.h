// The state and the steps of the pickle machine. The steps that make values are in machine.cpp; those that
// call or change values are in calls.cpp.
#pragma once

#include <algorithm>

#include "pickle/machine.h"
#include "pickle/memo.h"
#include "pickle/opcode.h"
#include "pickle/stack.h"
#include "pickle/storages.h"

namespace zerocopy {

class Machine {
 public:
  // `pickle` is a part of the document's text. Both must outlive the machine.
  Machine(Document& document, ByteSpan pickle, const PickleForm& form)
      : document_(document),
        opcodes_left_(form.most_opcodes(pickle.size())),
        decoder_(pickle),
        memo_(pickle.size()),
        storages_(form.ids, form.folder),
        stubs_(form.stubs) {}

  Value run() {
    try {
      for (decoder_.next(instruction_); instruction_.opcode != Opcode::stop; decoder_.next(instruction_)) {
        if (opcodes_left_-- == 0) fail("more opcodes than its deflated bytes account for");
        step();
      }
      return pop();
    } catch (const StackError& error) {
      fail(error.what());
    }
  }

 private:
  void step();

  void push(const Value& value) { stack_.push(value); }
  Value pop() { return stack_.pop(); }
  std::uint64_t index() const { return static_cast<std::uint64_t>(instruction_.number); }

  void memoize(bool stored);
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
  void call(const Value& callable, const Value& arguments, Object::Call how);
  bool needs_stub(const Global& global, const Sequence& arguments, Object::Call how) const;
  void step_for_stubs();
  void drop();

  Object::Step& add_step(Object& object, Object::Effect effect, const Value& value);
  void contain(Node& outer, const Value& inner) const;
  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void refuse(const std::string& reason) const;
  std::string where() const { return " (at " + hex(instruction_.offset) + ")"; }

  Document& document_;
  std::uint64_t opcodes_left_;
  Decoder decoder_;
  Instruction instruction_{};
  Memo<Value> memo_;
  Stack stack_;
  const Value empty_tuple_ = Value::of(document_.make<Sequence>(Kind::tuple));  // shared
  StorageTable storages_;
  bool stubs_;
  const Node* last_call_ = nullptr;  // the result of the last call; null once the memo stores a value
};

}  // namespace zerocopy
