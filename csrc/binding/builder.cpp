#include "binding/builder.h"

#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {

py::object Builder::other(const Node& node) {
  switch (node.kind) {
    case Kind::byte_string:
      return byte_string(static_cast<const Blob&>(node));
    case Kind::size:
      return construct("Size")(tuple(static_cast<const Sequence&>(node)));
    case Kind::ordered_dict:
      return steal(PyODict_New());
    case Kind::counter:
      return construct("Counter")();
    case Kind::device:
      return construct("device")(static_cast<const Device&>(node).type,
                                 value(static_cast<const Device&>(node).index));
    case Kind::global:
      return global(static_cast<const Global&>(node));
    case Kind::storage:
      return tensors_.storage(static_cast<const Storage&>(node));
    case Kind::tensor:
      return tensors_.tensor(static_cast<const Tensor&>(node));
    case Kind::parameter:
      return parameter(static_cast<const Parameter&>(node));
    case Kind::object:
      return object(static_cast<const Object&>(node));
    default:
      throw FormatError("pickle: a value of unknown kind");
  }
}

void Builder::finish(const Node& node, const py::object& made) {
  if (node.kind == Kind::object) return apply_steps(static_cast<const Object&>(node), made);
  Values::finish(node, made);
  if (node.kind == Kind::dict || node.kind == Kind::ordered_dict || node.kind == Kind::counter) {
    set_attributes(made, static_cast<const Mapping&>(node).state);
  }
}

py::object Builder::byte_string(const Blob& blob) {
  const std::string_view bytes = blob.bytes.text();
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  if (policy_.encoding == "bytes") return steal(PyBytes_FromStringAndSize(bytes.data(), size));
  PyObject* made = PyUnicode_Decode(bytes.data(), size, policy_.encoding.c_str(), "strict");
  if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    throw FormatError("pickle: string " + quote(bytes) + " is not " + policy_.encoding +
                      " (written by Python 2? try encoding='latin1')");
  }
  return steal(made);
}

py::object Builder::global(const Global& global) {
  switch (global.action) {
    case Action::dtype:
      return tensors_.dtypes().object(*global.dtype);
    case Action::external:
      return policy_.allowed[py::make_tuple(py::bytes(global.module.data(), global.module.size()),
                                            py::bytes(global.name.data(), global.name.size()))];
    default:
      return construct("native_global")(global.module, global.name);
  }
}

py::object Builder::parameter(const Parameter& parameter) {
  py::object made = construct("parameter")(value(parameter.data), parameter.requires_grad);
  set_attributes(made, parameter.state);
  return made;
}

void Builder::set_attributes(const py::object& made, const Value& state) {
  if (!state.is(Kind::none)) construct("set_attributes")(made, value(state));
}

// -------------------------------------------------------------------- globals of the allow-list

const char* Builder::name_of(Object::Call call) {
  switch (call) {
    case Object::Call::reduce:
      return "call";
    case Object::Call::create:
      return "create";
    case Object::Call::create_with_keywords:
      return "create_with_keywords";
  }
  return "";
}

py::object Builder::object(const Object& object) {
  const py::object callable = object.called != nullptr ? node(*object.called) : global(*object.callable);
  return construct(name_of(object.call))(callable, tuple(*object.arguments));
}

void Builder::apply_steps(const Object& object, const py::object& made) {
  for (const Object::Step& step : object.steps) {
    switch (step.effect) {
      case Object::Effect::state:
        construct("set_state")(made, value(step.value));
        break;
      case Object::Effect::append:
        construct("append")(made, value(step.value));
        break;
      case Object::Effect::set_item:
        construct("set_item")(made, value(step.key), value(step.value));
        break;
    }
  }
}

}  // namespace zerocopy
