#include "pickle/globals.h"

#include <array>
#include <optional>
#include <set>
#include <tuple>

#include "pickle/memo.h"
#include "pickle/opcode.h"

namespace zerocopy {
namespace {

struct Entry {
  std::string_view module;
  std::string_view name;
  Action action;
};

// The natively built part of torch's weights_only list (torch/_weights_only_unpickler.py), with
// Python 2's names of builtins, which protocol 2 writes. dtypes and storages: pickle/dtype.cpp.
constexpr std::array kTable{
    Entry{"torch._utils", "_rebuild_tensor_v2", Action::rebuild_tensor_v2},
    Entry{"collections", "OrderedDict", Action::ordered_dict},
    Entry{"torch._utils", "_rebuild_parameter", Action::rebuild_parameter},
    Entry{"torch._utils", "_rebuild_tensor_v3", Action::rebuild_tensor_v3},
    Entry{"torch._utils", "_rebuild_tensor", Action::rebuild_tensor},
    Entry{"torch._utils", "_rebuild_parameter_with_state", Action::rebuild_parameter_with_state},
    Entry{"torch", "Size", Action::size},
    Entry{"torch", "device", Action::device},
    Entry{"collections", "Counter", Action::counter},
    Entry{"builtins", "set", Action::set},
    Entry{"__builtin__", "set", Action::set},
    Entry{"builtins", "bytes", Action::bytes},
    Entry{"__builtin__", "bytes", Action::bytes},
    Entry{"builtins", "bytearray", Action::byte_array},
    Entry{"__builtin__", "bytearray", Action::byte_array},
    Entry{"builtins", "complex", Action::complex},
    Entry{"__builtin__", "complex", Action::complex},
    Entry{"_codecs", "encode", Action::encode},
    Entry{"torch.nn.parameter", "Parameter", Action::parameter_class},
};

std::string_view cut(std::string_view name) { return name.substr(0, kMaxGlobalName); }

bool holds_storages(std::string_view module) {
  return module == "torch" || module == "torch.storage" || module == "torch.cuda";
}

// Tracks the two strings that STACK_GLOBAL takes: the last strings pushed, and the memo's strings.
class StringTracker {
 public:
  explicit StringTracker(ByteSpan pickle) : memo_(pickle.size()) {}

  void follow(const Instruction& instruction) {
    using enum Opcode;
    switch (instruction.opcode) {
      case binunicode:
      case short_binunicode:
      case binunicode8:
      case binstring:
      case short_binstring:
      case text_unicode:
        push(instruction.bytes.text());
        break;
      case text_string:  // 'quoted'
        push(unquoted(instruction.bytes.text()));
        break;
      case binput:
      case long_binput:
        put(index(instruction));
        break;
      case text_put:
        put(decimal(instruction.bytes.text()));
        break;
      case memoize:
        std::ignore = memo_.append(last_);
        break;
      case binget:
      case long_binget:
        get(index(instruction));
        break;
      case text_get:
        get(decimal(instruction.bytes.text()));
        break;
      default:
        break;
    }
  }

  std::string_view last() const { return last_; }
  std::string_view before_last() const { return before_last_; }

 private:
  static std::uint64_t index(const Instruction& instruction) {
    return static_cast<std::uint64_t>(instruction.number);
  }

  static std::string_view unquoted(std::string_view text) {
    return text.size() >= 2 ? text.substr(1, text.size() - 2) : text;
  }

  static std::optional<std::uint64_t> decimal(std::string_view text) {
    std::uint64_t value = 0;
    if (text.empty() || text.size() > 9) return std::nullopt;
    for (const char c : text) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + static_cast<std::uint64_t>(c - '0');
    }
    return value;
  }

  void put(std::optional<std::uint64_t> i) {
    if (i) std::ignore = memo_.put(*i, last_);
  }

  void get(std::optional<std::uint64_t> i) {
    const std::string_view* text = i ? memo_.get(*i) : nullptr;
    if (text != nullptr) push(*text);
  }

  void push(std::string_view text) {
    before_last_ = last_;
    last_ = text;
  }

  std::string_view last_;
  std::string_view before_last_;
  Memo<std::string_view> memo_;
};

}  // namespace

KnownGlobal known_global(std::string_view module, std::string_view name) {
  for (const Entry& entry : kTable) {
    if (entry.name == name && entry.module == module) return {entry.action, nullptr};
  }
  if (module == "torch") {
    if (const DType* dtype = dtype_by_name(name)) return {Action::dtype, dtype};
  }
  if (holds_storages(module)) {
    if (const DType* dtype = dtype_by_storage(name)) return {Action::storage_class, dtype};
  }
  return {};
}

std::vector<GlobalName> list_globals(ByteSpan pickle) {
  std::set<GlobalName> found;
  StringTracker strings(pickle);
  Decoder decoder(pickle);
  try {
    Instruction instruction;
    for (decoder.next(instruction); instruction.opcode != Opcode::stop; decoder.next(instruction)) {
      strings.follow(instruction);
      if (instruction.opcode == Opcode::global || instruction.opcode == Opcode::inst) {
        found.insert({cut(instruction.bytes.text()), cut(instruction.more.text())});
      } else if (instruction.opcode == Opcode::stack_global && !strings.last().empty()) {
        found.insert({cut(strings.before_last()), cut(strings.last())});
      }
    }
  } catch (const FormatError&) {
    // The machine can meet only the globals before the error.
  }
  return {found.begin(), found.end()};
}

}  // namespace zerocopy
