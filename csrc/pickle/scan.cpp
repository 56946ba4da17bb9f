#include "pickle/scan.h"

#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "pickle/globals.h"
#include "pickle/memo.h"
#include "pickle/opcode.h"

namespace zerocopy {
namespace {

// Drops a larger stack, to bound memory. The machine refuses such pickles.
constexpr std::size_t kMaxStack = std::size_t{1} << 20U;

// A value of the walk in one word, to keep stacks and memos small.
//
//   0  unknown    ...01  a string: offset of its opcode    ...10  a global: index in PickleScan
class Item {
 public:
  Item() = default;
  static Item text(std::uint64_t offset) { return Item((offset << kTagBits) | kText); }
  static Item global(std::size_t index) { return Item((std::uint64_t{index} << kTagBits) | kGlobal); }

  bool is_text() const { return (bits_ & kTagMask) == kText; }
  bool is_global() const { return (bits_ & kTagMask) == kGlobal; }
  std::uint64_t number() const { return bits_ >> kTagBits; }

 private:
  static constexpr unsigned kTagBits = 2;
  static constexpr std::uint64_t kTagMask = 3;
  static constexpr std::uint64_t kText = 1;
  static constexpr std::uint64_t kGlobal = 2;

  explicit Item(std::uint64_t bits) : bits_(bits) {}

  std::uint64_t bits_ = 0;
};

// Lenient, unlike an unpickler: popping an empty stack returns an unknown value.
class Items {
 public:
  void push(const Item& item) {
    keep_in_bounds();
    items_.push_back(item);
  }

  void mark() {
    keep_in_bounds();
    marks_.push_back(items_.size());
  }

  Item pop() {
    if (items_.empty()) return {};
    const Item item = items_.back();
    items_.pop_back();
    while (!marks_.empty() && marks_.back() > items_.size()) marks_.pop_back();
    return item;
  }

  void pop(int count) {
    for (int i = 0; i < count; ++i) pop();
  }

  // POP also removes a mark.
  void pop_item_or_mark() {
    if (!marks_.empty() && marks_.back() == items_.size()) {
      marks_.pop_back();
    } else {
      pop();
    }
  }

  // Returns the first item above the mark, which OBJ calls.
  Item pop_to_mark() {
    const std::size_t mark = marks_.empty() ? 0 : marks_.back();
    if (!marks_.empty()) marks_.pop_back();
    const Item first = mark < items_.size() ? items_[mark] : Item();
    items_.resize(mark);
    return first;
  }

  Item top() const { return items_.empty() ? Item() : items_.back(); }

 private:
  void keep_in_bounds() {
    if (items_.size() + marks_.size() < kMaxStack) return;
    items_.clear();
    marks_.clear();
  }

  std::vector<Item> items_;
  std::vector<std::size_t> marks_;  // stack heights, never above the current height
};

class Walk {
 public:
  Walk(ByteSpan pickle, std::size_t limit)
      : pickle_(pickle), decoder_(pickle), memo_(pickle.size()), limit_(limit) {}

  PickleScan run() {
    try {
      while (!scan_.stopped) {
        decoder_.next(instruction_);
        note();
        step();
      }
      scan_.end = instruction_.offset + 1;
    } catch (const FormatError& error) {
      scan_.fault = error.what();
      scan_.truncated = dynamic_cast<const TruncatedError*>(&error) != nullptr;
      scan_.end = instruction_.offset;
    }
    return std::move(scan_);
  }

 private:
  void step();

  void note() { count(scan_.opcodes[static_cast<std::uint8_t>(instruction_.opcode)]); }

  void count(ScannedOpcode& opcode) const {
    if (opcode.count++ == 0) opcode.offset = instruction_.offset;
  }

  std::uint64_t index() const { return static_cast<std::uint64_t>(instruction_.number); }

  // Returns the index of PUT and GET in protocol 0, or a number beyond every limit if it is
  // malformed.
  std::uint64_t decimal() const {
    const std::string_view text = instruction_.bytes.text();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : UINT64_MAX;
  }

  void put(std::uint64_t index) { std::ignore = memo_.put(index, items_.top()); }

  void get(std::uint64_t index) {
    const Item* item = memo_.get(index);
    items_.push(item == nullptr ? Item() : *item);
  }

  void push_text() { items_.push(Item::text(instruction_.offset)); }

  void push_global(std::optional<std::size_t> index) { items_.push(index ? Item::global(*index) : Item()); }

  // Decodes the text again from its opcode. Returns nullopt for other items.
  std::optional<std::string_view> text_of(const Item& item) const {
    if (!item.is_text()) return std::nullopt;
    Instruction pushed;
    Decoder(pickle_.subspan({item.number(), pickle_.size() - item.number()})).next(pushed);
    const std::string_view text = pushed.bytes.text();
    const bool quoted = pushed.opcode == Opcode::text_string && text.size() >= 2;
    return quoted ? text.substr(1, text.size() - 2) : text;
  }

  void replace(int popped) {
    items_.pop(popped);
    items_.push(Item());
  }

  void replace_to_mark() {
    items_.pop_to_mark();
    items_.push(Item());
  }

  void call(const Item& callable) {
    if (callable.is_global()) scan_.globals[callable.number()].called = true;
  }

  // Returns the global's index, or nullopt if there are too many.
  std::optional<std::size_t> name_global(std::string_view module, std::string_view name);
  void push_stack_global();

  ByteSpan pickle_;
  Decoder decoder_;
  Instruction instruction_{};
  Items items_;
  Memo<Item> memo_;
  std::size_t limit_;
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> known_;
  PickleScan scan_;
};

void Walk::step() {
  switch (instruction_.opcode) {
    case Opcode::stop:
      scan_.stopped = true;
      return;
    case Opcode::proto:
    case Opcode::frame:
      return;
    case Opcode::mark:
      return items_.mark();

    case Opcode::binunicode:
    case Opcode::short_binunicode:
    case Opcode::binunicode8:
    case Opcode::binstring:
    case Opcode::short_binstring:
    case Opcode::text_unicode:
    case Opcode::text_string:
      return push_text();

    case Opcode::global:
      return push_global(name_global(instruction_.bytes.text(), instruction_.more.text()));
    case Opcode::stack_global:
      return push_stack_global();
    case Opcode::inst:
      items_.pop_to_mark();
      push_global(name_global(instruction_.bytes.text(), instruction_.more.text()));
      call(items_.pop());
      return items_.push(Item());
    case Opcode::obj:
      call(items_.pop_to_mark());
      return items_.push(Item());
    case Opcode::newobj_ex:
      items_.pop();
      [[fallthrough]];
    case Opcode::reduce:
    case Opcode::newobj:
      items_.pop();
      call(items_.pop());
      return items_.push(Item());

    case Opcode::binput:
    case Opcode::long_binput:
      return put(index());
    case Opcode::text_put:
      return put(decimal());
    case Opcode::memoize:
      std::ignore = memo_.append(items_.top());
      return;
    case Opcode::binget:
    case Opcode::long_binget:
      return get(index());
    case Opcode::text_get:
      return get(decimal());

    case Opcode::dup:
      return items_.push(items_.top());
    case Opcode::pop:
      return items_.pop_item_or_mark();
    case Opcode::pop_mark:
    case Opcode::appends:
    case Opcode::additems:
    case Opcode::setitems:
      items_.pop_to_mark();
      return;
    case Opcode::append:
    case Opcode::build:
      return items_.pop(1);
    case Opcode::setitem:
      return items_.pop(2);

    case Opcode::tuple1:
    case Opcode::binpersid:
    case Opcode::readonly_buffer:
      return replace(1);
    case Opcode::tuple2:
      return replace(2);
    case Opcode::tuple3:
      return replace(3);
    case Opcode::tuple:
    case Opcode::list:
    case Opcode::dict:
    case Opcode::frozenset:
      return replace_to_mark();

    default:  // pushes an unknown value
      return items_.push(Item());
  }
}

std::optional<std::size_t> Walk::name_global(std::string_view module, std::string_view name) {
  const std::pair key(module.substr(0, kMaxGlobalName), name.substr(0, kMaxGlobalName));
  auto found = known_.find(key);
  if (found == known_.end()) {
    if (known_.size() >= limit_) {
      ++scan_.globals_left_out;
      return std::nullopt;
    }
    found = known_.emplace(key, scan_.globals.size()).first;
    scan_.globals.push_back({.module = key.first,
                             .name = key.second,
                             .offset = instruction_.offset,
                             .opcode = static_cast<std::uint8_t>(instruction_.opcode)});
  }
  ++scan_.globals[found->second].uses;
  return found->second;
}

void Walk::push_stack_global() {
  const auto name = text_of(items_.pop());
  const auto module = text_of(items_.pop());
  if (name && module) return push_global(name_global(*module, *name));
  count(scan_.unresolved);
  items_.push(Item());
}

}  // namespace

PickleScan scan_pickle(ByteSpan pickle, std::size_t limit) { return Walk(pickle, limit).run(); }

}  // namespace zerocopy
