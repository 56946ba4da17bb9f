#include "binding/builder.h"

#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {

// ------------------------------------------------------------------------------------- values

py::object Builder::value(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return py::none();
    case Kind::boolean:
      return py::bool_(value.boolean());
    case Kind::integer:
      return steal(PyLong_FromLongLong(value.integer()));
    default:
      return node(value.node());
  }
}

// Makes each node once. A container is stored before it is filled, so it can contain itself.
py::object Builder::node(const Node& node) {
  py::object& slot = made_[node.slot];
  if (slot.is(in_progress_)) throw UnsupportedError("pickle: a value is among its own arguments");
  if (slot) return slot;
  if (++depth_ > Document::kMaxNesting) throw FormatError(Document::kNestingMessage);
  slot = in_progress_;
  slot = make(node);
  finish(node, slot);
  --depth_;
  return slot;
}

py::object Builder::make(const Node& node) {
  switch (node.kind) {
    case Kind::real:
      return steal(PyFloat_FromDouble(static_cast<const Real&>(node).number));
    case Kind::text:
      return text(static_cast<const Blob&>(node));
    case Kind::byte_string:
      return byte_string(static_cast<const Blob&>(node));
    case Kind::big_integer:
      return big_integer(static_cast<const Blob&>(node));
    case Kind::bytes:
      return copied(&PyBytes_FromStringAndSize, static_cast<const Blob&>(node).bytes);
    case Kind::byte_array:
      return copied(&PyByteArray_FromStringAndSize, static_cast<const Blob&>(node).bytes);
    case Kind::tuple:
      return tuple(static_cast<const Sequence&>(node));
    case Kind::size:
      return construct("Size")(tuple(static_cast<const Sequence&>(node)));
    case Kind::list:
      return steal(PyList_New(0));
    case Kind::set:
      return set(static_cast<const Sequence&>(node));
    case Kind::frozenset:
      return py::reinterpret_steal<py::object>(
          PyFrozenSet_New(set(static_cast<const Sequence&>(node)).ptr()));
    case Kind::dict:
      return steal(PyDict_New());
    case Kind::ordered_dict:
      return steal(PyODict_New());
    case Kind::counter:
      return construct("Counter")();
    case Kind::complex: {
      const auto& number = static_cast<const Complex&>(node);
      return steal(PyComplex_FromDoubles(number.real, number.imaginary));
    }
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
  switch (node.kind) {
    case Kind::list:
      return fill_list(static_cast<const Sequence&>(node), made);
    case Kind::dict:
    case Kind::ordered_dict:
    case Kind::counter:
      return fill_mapping(static_cast<const Mapping&>(node), made);
    case Kind::object:
      return apply_steps(static_cast<const Object&>(node), made);
    default:
      return;
  }
}

// -------------------------------------------------------------------------------- plain values

py::object Builder::text(const Blob& blob) {
  const std::string_view utf8 = blob.bytes.text();
  return steal(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogatepass"));
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

py::object Builder::big_integer(const Blob& blob) {
  const py::bytes bytes(blob.bytes.text().data(), blob.bytes.size());
  const auto int_type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
  return int_type.attr("from_bytes")(bytes, "little", py::arg("signed") = true);
}

py::object Builder::tuple(const Sequence& sequence) {
  py::object made = steal(PyTuple_New(static_cast<Py_ssize_t>(sequence.items.size())));
  Py_ssize_t i = 0;
  for (const Value& item : sequence.items) PyTuple_SET_ITEM(made.ptr(), i++, value(item).release().ptr());
  return made;
}

py::object Builder::set(const Sequence& sequence) {
  py::object made = steal(PySet_New(nullptr));
  for (const Value& item : sequence.items) require(PySet_Add(made.ptr(), value(item).ptr()));
  return made;
}

void Builder::fill_list(const Sequence& sequence, const py::object& list) {
  for (const Value& item : sequence.items) require(PyList_Append(list.ptr(), value(item).ptr()));
}

void Builder::fill_mapping(const Mapping& mapping, const py::object& made) {
  const auto set_item = mapping.kind == Kind::ordered_dict ? &PyODict_SetItem : &PyDict_SetItem;
  for (const auto& [key, item] : mapping.items) {
    const py::object made_key = value(key);
    require(set_item(made.ptr(), made_key.ptr(), value(item).ptr()));
  }
  if (!mapping.state.is(Kind::none)) construct("set_attributes")(made, value(mapping.state));
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
  if (!parameter.state.is(Kind::none)) construct("set_attributes")(made, value(parameter.state));
  return made;
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
