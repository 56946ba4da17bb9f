#include "pickle/rebuild.h"

#include <array>

#include "memory/utf8.h"
#include "pickle/geometry.h"
#include "pickle/keys.h"

namespace zerocopy {
namespace {

constexpr std::int64_t kMaxDeviceIndex = 127;  // c10::DeviceIndex is an int8_t
constexpr std::size_t kMaxDeviceName = 64;

// The arguments of one call, read with the type that the callee wants.
class Arguments {
 public:
  Arguments(const Global& callable, const Sequence& arguments, std::uint64_t offset)
      : callable_(callable), items_(arguments.items), offset_(offset) {}

  std::size_t count() const noexcept { return items_.size(); }

  void require_count(std::size_t least, std::size_t most) const {
    if (count() < least || count() > most) fail(std::to_string(count()) + " arguments");
  }

  const Value& operator[](std::size_t i) const { return items_[i]; }

  std::int64_t integer(std::size_t i) const {
    if (!items_[i].is(Kind::integer)) fail("is no 64-bit integer", i);
    return items_[i].integer();
  }

  bool boolean(std::size_t i) const {
    if (!items_[i].is(Kind::boolean)) fail("is no bool", i);
    return items_[i].boolean();
  }

  double real(std::size_t i) const {
    if (!items_[i].is(Kind::real)) fail("is no float", i);
    return items_[i].as<Real>().number;
  }

  std::string_view text(std::size_t i) const {
    if (!items_[i].is_text()) fail("is no string", i);
    return items_[i].as<Blob>().bytes.text();
  }

  Storage& storage(std::size_t i) const {
    if (!items_[i].is(Kind::storage)) fail("is no storage", i);
    return items_[i].as<Storage>();
  }

  const DType& dtype(std::size_t i) const {
    const Global* global = items_[i].is(Kind::global) ? &items_[i].as<Global>() : nullptr;
    if (global != nullptr && global->action == Action::external) {
      throw UnsupportedError("pickle: dtype " + quote(global->name) + where());
    }
    if (global == nullptr || global->action != Action::dtype) fail("is no dtype", i);
    return *global->dtype;
  }

  // A tuple or torch.Size.
  const Sequence& sequence(std::size_t i) const {
    if (!items_[i].is(Kind::tuple) && !items_[i].is(Kind::size)) fail("is no tuple", i);
    return items_[i].as<Sequence>();
  }

  void require_key(const Value& key) const { check_key(key, offset_); }

  // torch.save writes an empty OrderedDict. Anything in it would be called by backward().
  void no_hooks(std::size_t i) const {
    if (items_[i].is(Kind::none)) return;
    if (!items_[i].is_mapping()) refuse("backward hooks that are no dict");
    const auto& hooks = items_[i].as<Mapping>();
    if (!hooks.items.empty() || !hooks.state.is(Kind::none)) refuse("backward hooks");
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw FormatError("pickle: " + name() + ": " + reason + where());
  }
  [[noreturn]] void fail(const char* reason, std::size_t i) const {
    fail("argument " + std::to_string(i) + " " + reason);
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw RefusedError("pickle: " + name() + ": " + reason + where());
  }
  [[noreturn]] void unsupported(const std::string& reason) const {
    throw UnsupportedError("pickle: " + name() + ": " + reason + where());
  }

 private:
  std::string name() const {
    return std::string(callable_.module) + "." + std::string(callable_.name);
  }
  std::string where() const { return " (at " + hex(offset_) + ")"; }

  const Global& callable_;
  const ArenaList<Value>& items_;
  std::uint64_t offset_;
};

// Sizes or strides, out of their tuple.
class Integers {
 public:
  Integers(const Arguments& arguments, std::size_t i) : sequence_(arguments.sequence(i)) {
    count_ = sequence_.items.size();
    if (count_ > kMaxDimensions) arguments.fail(std::to_string(count_) + " dimensions");
    for (std::size_t k = 0; k < count_; ++k) {
      if (!sequence_.items[k].is(Kind::integer)) arguments.fail("holds something else than 64-bit integers", i);
      values_[k] = sequence_.items[k].integer();
    }
  }

  const Sequence* sequence() const noexcept { return &sequence_; }
  std::span<const std::int64_t> values() const noexcept { return {values_.data(), count_}; }

 private:
  const Sequence& sequence_;
  std::array<std::int64_t, kMaxDimensions> values_;
  std::size_t count_;
};

// {'conj': bool, 'neg': bool}: the lazy bits of a complex view.
void set_metadata(const Arguments& arguments, std::size_t i, Tensor& tensor) {
  if (arguments[i].is(Kind::none)) return;
  if (!arguments[i].is_mapping()) arguments.fail("is no dict", i);
  for (const auto& [key, value] : arguments[i].as<Mapping>().items) {
    const std::string_view name = key.is_text() ? key.as<Blob>().bytes.text() : std::string_view();
    if (name != "conj" && name != "neg") arguments.unsupported("metadata other than conj and neg");
    if (!value.is(Kind::boolean)) arguments.fail("metadata " + quote(name) + " is no bool");
    if (name == "conj" && value.boolean() && !tensor.dtype->is_complex()) {
      arguments.fail("the conjugate of " + std::string(tensor.dtype->name));
    }
    (name == "conj" ? tensor.conjugate : tensor.negative) = value.boolean();
  }
}

// (storage, offset, size, stride), the part that all versions share.
Tensor& make_tensor(Document& document, const Arguments& arguments, const DType& dtype) {
  Storage& storage = arguments.storage(0);
  const Integers size(arguments, 2);
  const Integers stride(arguments, 3);
  auto& tensor = document.make<Tensor>(Kind::tensor);
  tensor.storage = &storage;
  tensor.dtype = &dtype;
  tensor.offset = arguments.integer(1);
  tensor.size = size.sequence();
  tensor.stride = stride.sequence();
  if (dtype.quantized) arguments.fail("a plain tensor over quantized elements");
  const auto numel = static_cast<std::int64_t>(storage.nbytes / dtype.size);
  const std::string reason =
      why_not_a_view(numel, dtype.size, tensor.offset, size.values(), stride.values());
  if (!reason.empty()) arguments.fail(reason);
  if (storage.dtype == untyped() && (storage.element == untyped() || dtype.size > storage.element->size)) {
    storage.element = &dtype;
  }
  return tensor;
}

void set_requires_grad(const Arguments& arguments, std::size_t i, Tensor& tensor) {
  tensor.requires_grad = arguments.boolean(i);
  if (tensor.requires_grad && !tensor.dtype->differentiable) {
    arguments.fail(std::string(tensor.dtype->name) + " cannot require grad");
  }
}

Value rebuild_tensor(Document& document, const Arguments& arguments) {
  arguments.require_count(4, 4);
  return Value::of(make_tensor(document, arguments, *arguments.storage(0).dtype));
}

// (storage, offset, size, stride, requires_grad, backward_hooks[, metadata])
Value rebuild_tensor_v2(Document& document, const Arguments& arguments) {
  arguments.require_count(6, 7);
  Tensor& tensor = make_tensor(document, arguments, *arguments.storage(0).dtype);
  set_requires_grad(arguments, 4, tensor);
  arguments.no_hooks(5);
  if (arguments.count() > 6) set_metadata(arguments, 6, tensor);
  return Value::of(tensor);
}

// (storage, offset, size, stride, requires_grad, backward_hooks, dtype[, metadata])
Value rebuild_tensor_v3(Document& document, const Arguments& arguments) {
  arguments.require_count(7, 8);
  Tensor& tensor = make_tensor(document, arguments, arguments.dtype(6));
  set_requires_grad(arguments, 4, tensor);
  arguments.no_hooks(5);
  if (arguments.count() > 7) set_metadata(arguments, 7, tensor);
  return Value::of(tensor);
}

// (data, requires_grad, backward_hooks[, state])
Value rebuild_parameter(Document& document, const Arguments& arguments, bool with_state) {
  arguments.require_count(with_state ? 4 : 3, with_state ? 4 : 3);
  const Value& data = arguments[0];
  if (!data.is(Kind::tensor) && !data.is(Kind::object)) arguments.fail("is no tensor", 0);
  auto& parameter = document.make<Parameter>(Kind::parameter);
  parameter.data = data;
  parameter.depth = static_cast<std::uint16_t>(data.node().depth + 1);
  parameter.requires_grad = arguments.boolean(1);
  if (parameter.requires_grad && data.is(Kind::tensor) && !data.as<Tensor>().dtype->differentiable) {
    arguments.fail("a parameter that cannot require grad");
  }
  arguments.no_hooks(2);
  if (with_state) parameter.state = arguments[3];
  return Value::of(parameter);
}

Value make_ordered_dict(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  auto& mapping = document.make<Mapping>(Kind::ordered_dict);
  if (arguments.count() == 0) return Value::of(mapping);
  if (!arguments[0].is(Kind::list)) arguments.fail("is no list", 0);
  const auto& pairs = arguments[0].as<Sequence>();
  document.charge(pairs.items.size());
  mapping.depth = static_cast<std::uint16_t>(pairs.depth + 1);
  for (const Value& pair : pairs.items) {  // Python 2 wrote lists for pairs
    const bool is_pair = (pair.is(Kind::tuple) || pair.is(Kind::list)) && pair.as<Sequence>().items.size() == 2;
    if (!is_pair) arguments.fail("holds something else than pairs", 0);
    const auto& items = pair.as<Sequence>().items;
    arguments.require_key(items[0]);
    mapping.items.push_back(document.arena(), {items[0], items[1]});
  }
  return Value::of(mapping);
}

Value make_counter(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  auto& mapping = document.make<Mapping>(Kind::counter);
  if (arguments.count() == 0) return Value::of(mapping);
  if (!arguments[0].is(Kind::dict)) arguments.fail("is no dict", 0);
  const auto& counts = arguments[0].as<Mapping>();
  document.charge(counts.items.size());
  mapping.depth = counts.depth;
  mapping.items.assign(document.arena(), counts.items);
  return Value::of(mapping);
}

Value copy_sequence(Document& document, Kind kind, const Sequence& from) {
  document.charge(from.items.size());
  auto& sequence = document.make<Sequence>(kind);
  sequence.depth = from.depth;
  sequence.items.assign(document.arena(), from.items);
  return Value::of(sequence);
}

Value make_set(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 1);
  if (arguments.count() == 0) return Value::of(document.make<Sequence>(Kind::set));
  if (!arguments[0].is(Kind::list)) arguments.fail("is no list", 0);
  const auto& items = arguments[0].as<Sequence>();
  for (const Value& item : items.items) arguments.require_key(item);
  return copy_sequence(document, Kind::set, items);
}

Value make_size(Document& document, const Arguments& arguments) {
  arguments.require_count(1, 1);
  return copy_sequence(document, Kind::size, *Integers(arguments, 0).sequence());
}

Value make_device(Document& document, const Arguments& arguments) {
  arguments.require_count(1, 2);
  auto& device = document.make<Device>(Kind::device);
  device.type = arguments.text(0);
  if (device.type.size() > kMaxDeviceName || !is_utf8(ByteSpan(device.type), Surrogates::refuse)) arguments.fail("device " + quote(device.type));
  if (arguments.count() == 2) {
    const std::int64_t index = arguments.integer(1);
    if (index < 0 || index > kMaxDeviceIndex) arguments.fail("device index " + std::to_string(index));
    device.index = arguments[1];
  }
  return Value::of(device);
}

Value make_complex(Document& document, const Arguments& arguments) {
  arguments.require_count(2, 2);
  auto& number = document.make<Complex>(Kind::complex);
  number.real = arguments.real(0);
  number.imaginary = arguments.real(1);
  return Value::of(number);
}

// The bytes of a text in latin-1: how protocol 2 carries bytes.
ByteSpan to_latin1(Document& document, const Arguments& arguments, std::string_view utf8) {
  document.charge(utf8.size());
  auto* room = static_cast<std::byte*>(document.arena().allocate(utf8.size(), 1));
  std::size_t size = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    auto code = static_cast<unsigned char>(utf8[i]);
    if (code >= 0x80) {
      // Two bytes hold up to U+07FF; latin-1 ends at U+00FF, whose first byte is 0xC3.
      if (code > 0xC3 || i + 1 == utf8.size()) arguments.fail("a character that is not in latin-1");
      code = static_cast<unsigned char>(((code & 0x1FU) << 6U) | (static_cast<unsigned char>(utf8[++i]) & 0x3FU));
    }
    room[size++] = std::byte{code};
  }
  return {room, size};
}

bool is_latin1(std::string_view codec) { return codec == "latin1" || codec == "latin-1"; }

// Only codecs that Python need not look up: a name from the file would import encodings.<name>.
ByteSpan encode(Document& document, const Arguments& arguments) {
  const std::string_view codec = arguments.text(1);
  const std::string_view text = arguments.text(0);
  if (is_latin1(codec)) return to_latin1(document, arguments, text);
  if (codec == "utf-8" || codec == "utf8") {
    if (!is_utf8(ByteSpan(text), Surrogates::refuse)) arguments.fail("a lone surrogate");
    return ByteSpan(text);
  }
  if (codec != "ascii") arguments.refuse("codec " + quote(codec));
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) arguments.fail("a character that is not in ascii");
  }
  return ByteSpan(text);
}

Value make_bytes(Document& document, const Arguments& arguments) {
  arguments.require_count(2, 2);
  auto& blob = document.make<Blob>(Kind::bytes);
  blob.bytes = encode(document, arguments);
  return Value::of(blob);
}

// bytearray(), bytearray(bytes) or bytearray(text, 'latin-1'). Never bytearray(n).
Value make_byte_array(Document& document, const Arguments& arguments) {
  arguments.require_count(0, 2);
  auto& blob = document.make<Blob>(Kind::byte_array);
  if (arguments.count() == 2) {
    blob.bytes = encode(document, arguments);
  } else if (arguments.count() == 1) {
    if (!arguments[0].is(Kind::bytes)) arguments.fail("is not bytes", 0);
    blob.bytes = arguments[0].as<Blob>().bytes;
    document.charge(blob.bytes.size());
  }
  return Value::of(blob);
}

}  // namespace

Value call_native(Document& document, const Global& callable, const Sequence& sequence,
                  std::uint64_t offset) {
  const Arguments arguments(callable, sequence, offset);
  switch (callable.action) {
    case Action::rebuild_tensor_v2:
      return rebuild_tensor_v2(document, arguments);
    case Action::rebuild_tensor_v3:
      return rebuild_tensor_v3(document, arguments);
    case Action::rebuild_tensor:
      return rebuild_tensor(document, arguments);
    case Action::rebuild_parameter:
      return rebuild_parameter(document, arguments, false);
    case Action::rebuild_parameter_with_state:
      return rebuild_parameter(document, arguments, true);
    case Action::ordered_dict:
      return make_ordered_dict(document, arguments);
    case Action::counter:
      return make_counter(document, arguments);
    case Action::set:
      return make_set(document, arguments);
    case Action::size:
      return make_size(document, arguments);
    case Action::device:
      return make_device(document, arguments);
    case Action::complex:
      return make_complex(document, arguments);
    case Action::encode:
      return make_bytes(document, arguments);
    case Action::byte_array:
      return make_byte_array(document, arguments);
    case Action::dtype:
    case Action::storage_class:
    case Action::parameter_class:
    case Action::external:
      break;
  }
  arguments.refuse("may not be called by a checkpoint");
}

}  // namespace zerocopy
