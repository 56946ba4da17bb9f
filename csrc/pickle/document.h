// A pickle as data: a graph of values. Nothing in it has been called yet.
//
// The machine writes it, the binding builds Python objects from it, and tools inspect it. It is
// complete before anything is built, so a refused file has built nothing.
//
//   Value ── None, bool, int: stored in place
//         └─ other kinds: a pointer to a Node in the document's arena
//
// Nodes are shared where the pickle shares them (memo), so shared references are preserved. Texts
// are views of the pickle, which the document keeps.
#pragma once

#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "memory/arena.h"
#include "memory/budget.h"
#include "memory/region.h"
#include "pickle/dtype.h"
#include "pickle/globals.h"

namespace zerocopy {

enum class Kind : std::uint8_t {
  none,
  boolean,
  integer,
  real,  // Real
  // Blob
  big_integer,  // two's complement, little-endian, as LONG1 writes it
  text,         // UTF-8
  byte_string,  // Python 2's str: text or bytes, as the reader's `encoding` decides
  bytes,
  byte_array,
  // Sequence
  tuple,
  list,
  set,
  frozenset,
  size,  // torch.Size
  // Mapping
  dict,
  ordered_dict,
  counter,
  // One node type each.
  complex,
  device,
  global,
  storage,
  tensor,
  parameter,
  object,
};

struct Node {
  Kind kind = Kind::none;
  std::uint16_t depth = 0;  // of the values inside, as far as known at creation
  std::uint32_t slot = 0;   // numbers the nodes of a document from 0
};

// One word: a small integer, None, a bool, or a pointer to a node. A document has a dozen of these
// per tensor, and their size dominates a cold load.
//
//   ...01  integer of 62 bits      ..0010 None   ..0110 False   ..1010 True      ...00  Node*
class Value {
 public:
  Value() = default;  // None

  static Value of(Node& node) noexcept {
    return Value(reinterpret_cast<std::uintptr_t>(&node));  // NOLINT: node() turns it back
  }
  static Value of(bool flag) noexcept { return Value(flag ? kTrue : kFalse); }
  // Requires fits(number). Document::integer makes Integer nodes for other numbers.
  static Value of_small(std::int64_t number) noexcept {
    return Value((static_cast<std::uint64_t>(number) << kTagBits) | kIntegerTag);
  }
  static bool fits(std::int64_t number) noexcept { return of_small(number).small() == number; }

  Kind kind() const noexcept {
    if (is_node()) return node().kind;
    if ((bits_ & kTagMask) == kIntegerTag) return Kind::integer;
    return bits_ == kNone ? Kind::none : Kind::boolean;
  }
  bool is(Kind wanted) const noexcept { return kind() == wanted; }
  bool is_text() const noexcept { return is(Kind::text) || is(Kind::byte_string); }
  bool is_mapping() const noexcept { return is(Kind::dict) || is(Kind::ordered_dict) || is(Kind::counter); }
  bool is_node() const noexcept { return (bits_ & kTagMask) == 0; }

  // Each getter requires its kind.
  bool boolean() const noexcept { return bits_ == kTrue; }
  inline std::int64_t integer() const noexcept;
  Node& node() const noexcept {
    return *reinterpret_cast<Node*>(bits_);  // NOLINT: of() made it from a Node&
  }
  template <typename T>
  T& as() const noexcept {
    return static_cast<T&>(node());
  }

 private:
  static constexpr unsigned kTagBits = 2;
  static constexpr std::uint64_t kTagMask = 3;
  static constexpr std::uint64_t kIntegerTag = 1;
  static constexpr std::uint64_t kNone = 0b0010;
  static constexpr std::uint64_t kFalse = 0b0110;
  static constexpr std::uint64_t kTrue = 0b1010;

  explicit Value(std::uint64_t bits) noexcept : bits_(bits) {}
  std::int64_t small() const noexcept { return static_cast<std::int64_t>(bits_) >> kTagBits; }

  std::uint64_t bits_ = kNone;
};

struct Integer : Node {
  std::int64_t number = 0;
};

inline std::int64_t Value::integer() const noexcept { return is_node() ? as<Integer>().number : small(); }

struct Real : Node {
  double number = 0;
};

struct Blob : Node {
  ByteSpan bytes;
};

struct Sequence : Node {
  ArenaList<Value> items;
};

struct Mapping : Node {
  struct Item {
    Value key;
    Value value;
  };

  ArenaList<Item> items;
  Value state;  // an OrderedDict's attributes (state_dict's _metadata), or None
};

struct Complex : Node {
  double real = 0;
  double imaginary = 0;
};

struct Device : Node {
  std::string_view type;
  Value index;  // an integer or None
};

struct Global : Node {
  std::string_view module;
  std::string_view name;
  Action action = Action::external;
  const DType* dtype = nullptr;  // of a dtype or a storage class, else null
};

struct Storage : Node {
  std::size_t index = 0;  // in Document::storages, or for a view in Document::views
  std::string_view key;
  std::string_view location;
  const DType* dtype = nullptr;
  // The element type: `dtype`, or for untyped bytes the widest dtype of the tensors over them. It
  // decides alignment and byte order.
  const DType* element = nullptr;
  std::int64_t numel = 0;
  std::uint64_t nbytes = 0;
  // Before torch 0.4, a storage could be a part of another storage.
  const Storage* root = nullptr;
  std::uint64_t begin = 0;  // first byte in the root

  const Storage& whole() const noexcept { return root == nullptr ? *this : *root; }
};

struct Tensor : Node {
  std::size_t index = 0;  // in Document::tensors
  const Storage* storage = nullptr;
  const DType* dtype = nullptr;
  std::int64_t offset = 0;  // in elements, as the sizes and strides
  const Sequence* size = nullptr;
  const Sequence* stride = nullptr;
  bool requires_grad = false;
  bool conjugate = false;
  bool negative = false;
};

struct Parameter : Node {
  Value data;
  bool requires_grad = false;
  Value state;  // attributes, or None
};

// A call of a global that is not native. It is made only if the allow-list permits the global.
struct Object : Node {
  // f(*args); f.__new__(f, *args); for stubs only, the same with keyword arguments as the last item.
  enum class Call : std::uint8_t { reduce, create, create_with_keywords };
  enum class Effect : std::uint8_t { state, append, set_item };
  struct Step {
    Effect effect = Effect::state;
    Value key;  // set_item only
    Value value;
  };

  const Global* callable = nullptr;
  // For stubs only: the call's result is called in place of the global, which began the calls.
  Object* called = nullptr;
  Call call = Call::reduce;
  const Sequence* arguments = nullptr;
  ArenaList<Step> steps;  // later changes of the result, in order
};

class Document {
 public:
  // The machine bounds nesting when it makes values, but later appends through the memo can nest
  // deeper. Recursive walks stop at this depth, before they exhaust the C++ stack.
  static constexpr int kMaxNesting = 1100;
  static constexpr const char* kNestingMessage = "pickle: values nest deeper than 1000";

  // `fixed_budget` is the fixed amount of each Budget for what is made from the text.
  explicit Document(Region text, std::uint64_t fixed_budget = Budget::kFixed)
      : text_(std::move(text)), fixed_budget_(fixed_budget) {}

  // The bytes that the document was read from, mostly a pickle.
  ByteSpan text() const noexcept { return text_.bytes(); }
  std::uint64_t fixed_budget() const noexcept { return fixed_budget_; }
  std::uint32_t slots() const noexcept { return slots_; }

  Value root;
  Value metadata;  // the container's metadata, a dict of strings; None for torch's own formats
  std::vector<const Storage*> storages;  // one per key, in order of first use
  std::vector<const Storage*> views;     // parts of other storages
  std::vector<const Tensor*> tensors;
  std::vector<const Global*> externals;  // globals that are not native

  // Some calls copy their argument (set(list), encode(text)). An honest pickle spells each argument
  // out, so the copies fit into its size. A hostile pickle passes a long argument from
  // the memo repeatedly. Throws FormatError when the copies are out of proportion.
  void charge(std::uint64_t copied) {
    constexpr std::uint64_t kCopies = 4;
    charged_ += copied;
    if (charged_ / kCopies > text_.size()) throw FormatError("pickle: calls copy more than the pickle holds");
  }

  // Each use of a tuple as a key visits the whole tuple, here and in Python's hash(). A few bytes
  // can reuse a tuple from the memo. Throws FormatError when the visits are out of proportion.
  void charge_key(std::uint64_t parts) {
    constexpr std::uint64_t kVisits = 16;
    visited_ += parts;
    if (visited_ / kVisits > text_.size()) throw FormatError("pickle: long keys are used too often");
  }

  // A call makes a tensor or parameter, which takes some 512 bytes in torch and more for each
  // dimension. The call may take 5 bytes, if its arguments come from the memo.
  void charge_tensor(std::uint64_t dimensions) { made_ += 512 + 16 * dimensions; }

  // torch's rebuild functions check every element of their tensors (indices must be in range), and
  // attributes are set one by one. A few bytes can repeat either with the same tensors or state.
  //
  // The rebuild functions compute with integers of any width and any number of dimensions. So
  // check_repeated_work() refuses integers beyond 64 bits and more than 64 dimensions among their
  // arguments.
  void charge_rebuild(const Global& function, const Sequence& arguments);
  void charge_state(const Value& state);

  // Call this once all storages and states are complete. Throws FormatError when repeated work is
  // out of proportion.
  void check_repeated_work() const;

  Arena& arena() noexcept { return *arena_; }

  Value integer(std::int64_t number) {
    if (Value::fits(number)) return Value::of_small(number);
    auto& node = make<Integer>(Kind::integer);
    node.number = number;
    return Value::of(node);
  }

  // Nodes are never destroyed one by one. The arena frees them together, whatever the depth.
  template <typename T>
  T& make(Kind kind) {
    void* room = arena_->allocate(sizeof(T), alignof(T));
    T* node = new (room) T();
    node->kind = kind;
    node->slot = slots_++;
    return *node;
  }

 private:
  void charge_argument(const Value& argument, int depth);
  void charge_conversion(const Sequence& arguments);
  void require_countable(const Value& argument, int depth, std::uint64_t& visits) const;

  Region text_;
  std::uint64_t fixed_budget_;
  std::unique_ptr<Arena> arena_ = std::make_unique<Arena>();  // at an address that survives moves
  std::uint32_t slots_ = 0;
  std::uint64_t charged_ = 0;
  std::uint64_t visited_ = 0;
  std::uint64_t made_ = 0;                  // bytes of tensors and parameters, without their data
  std::uint64_t walked_ = 0;                // bytes of tensors
  std::uint64_t converted_ = 0;             // bytes of tensors in another dtype
  std::vector<const Mapping*> states_;      // one entry per use
  std::vector<const Sequence*> arguments_;  // of the rebuild functions
};

}  // namespace zerocopy
