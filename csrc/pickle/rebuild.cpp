#include "pickle/rebuild.h"

#include "pickle/plain.h"

namespace zerocopy {
namespace {

// Unwraps a type tag of TorchScript's pickler: restore_type_tag(dict, 'Dict[str, bool]').
Value untagged(const Value& value) {
  if (!value.is(Kind::object)) return value;
  const auto& object = value.as<Object>();
  const bool is_tag = object.callable->module == "torch.jit._pickle" &&
                      object.callable->name == "restore_type_tag" && object.steps.empty();
  return is_tag && object.arguments->items.size() == 2 ? object.arguments->items[0] : value;
}

// {'conj': bool, 'neg': bool}: the lazy bits of a complex view.
void set_metadata(const Arguments& arguments, std::size_t i, Tensor& tensor) {
  const Value metadata = untagged(arguments[i]);
  if (metadata.is(Kind::none)) return;
  if (!metadata.is_mapping()) arguments.fail("is not a dict", i);
  if (metadata.as<Mapping>().items.size() > 2) arguments.fail("metadata of more than two items");
  for (const auto& [key, value] : metadata.as<Mapping>().items) {
    const std::string_view name = key.is_text() ? key.as<Blob>().bytes.text() : std::string_view();
    if (name != "conj" && name != "neg") arguments.unsupported("metadata other than conj and neg");
    if (!value.is(Kind::boolean)) arguments.fail("metadata " + quote(name) + " is not a bool");
    if (name == "conj" && value.boolean() && !tensor.dtype->is_complex()) {
      arguments.fail("the conjugate of " + std::string(tensor.dtype->name));
    }
    (name == "conj" ? tensor.conjugate : tensor.negative) = value.boolean();
  }
}

// (storage, offset, size, stride): the arguments that all versions share.
Tensor& make_tensor(Document& document, const Arguments& arguments, const DType& dtype) {
  Storage& storage = arguments.storage(0);
  const Integers size(arguments, 2);
  const Integers stride(arguments, 3);
  document.charge_tensor(size.values().size());
  auto& tensor = document.make<Tensor>(Kind::tensor);
  tensor.index = document.tensors.size();
  document.tensors.push_back(&tensor);
  tensor.storage = &storage;
  tensor.dtype = &dtype;
  tensor.offset = arguments.integer(1);
  tensor.size = size.sequence();
  tensor.stride = stride.sequence();
  if (dtype.quantized) arguments.fail("a plain tensor over quantized elements");
  const auto numel = static_cast<std::int64_t>(storage.nbytes / dtype.size);
  const std::string reason = why_not_a_view(numel, dtype.size, tensor.offset, size.values(), stride.values());
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
  if (!data.is(Kind::tensor) && !data.is(Kind::object)) arguments.fail("is not a tensor", 0);
  document.charge_tensor(0);
  auto& parameter = document.make<Parameter>(Kind::parameter);
  parameter.data = data;
  parameter.depth = static_cast<std::uint16_t>(data.node().depth + 1);
  parameter.requires_grad = arguments.boolean(1);
  if (parameter.requires_grad && data.is(Kind::tensor) && !data.as<Tensor>().dtype->differentiable) {
    arguments.fail("a parameter that cannot require grad");
  }
  arguments.no_hooks(2);
  if (with_state) parameter.state = arguments[3];
  document.charge_state(parameter.state);
  return Value::of(parameter);
}

}  // namespace

Value call_native(Document& document, const Global& callable, const Sequence& arguments,
                  std::uint64_t offset) {
  const Arguments checked(callable, arguments, offset);
  switch (callable.action) {
    case Action::rebuild_tensor_v2:
      return rebuild_tensor_v2(document, checked);
    case Action::rebuild_tensor_v3:
      return rebuild_tensor_v3(document, checked);
    case Action::rebuild_tensor:
      return rebuild_tensor(document, checked);
    case Action::rebuild_parameter:
      return rebuild_parameter(document, checked, false);
    case Action::rebuild_parameter_with_state:
      return rebuild_parameter(document, checked, true);
    case Action::ordered_dict:
      return make_ordered_dict(document, checked);
    case Action::counter:
      return make_counter(document, checked);
    case Action::set:
      return make_set(document, checked);
    case Action::size:
      return make_size(document, checked);
    case Action::device:
      return make_device(document, checked);
    case Action::complex:
      return make_complex(document, checked);
    case Action::encode:
      return encode_text(document, checked);
    case Action::bytes:
      return make_empty_bytes(document, checked);
    case Action::byte_array:
      return make_byte_array(document, checked);
    case Action::dtype:
    case Action::storage_class:
    case Action::parameter_class:
    case Action::external:
      break;
  }
  checked.refuse("may not be called by a checkpoint");
}

}  // namespace zerocopy
