#include "python/values.h"

#include <string_view>
#include <utility>

#include "memory/errors.h"
#include "python/buffer.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

py::object text(const Blob& blob) {
  const std::string_view utf8 = blob.bytes.text();
  return steal(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogatepass"));
}

py::object big_integer(const Blob& blob) {
  const py::bytes bytes(blob.bytes.text().data(), blob.bytes.size());
  const auto int_type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
  return int_type.attr("from_bytes")(bytes, "little", py::arg("signed") = true);
}

}  // namespace

py::object Values::value(const Value& value) {
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

py::object Values::node(const Node& node) {
  py::object& slot = made_[node.slot];
  const bool is_again = slot.is(in_progress_) && node.kind == Kind::object;
  if (slot && !is_again) {
    if (!slot.is(in_progress_) && !slot.is(made_again_)) return slot;
    throw UnsupportedError("pickle: a value is among its own arguments");
  }
  if (++depth_ > Document::kMaxNesting) throw FormatError(Document::kNestingMessage);
  // A state that is set on an argument may refer to the result, as that of an object that holds a bound
  // method of itself. The argument exists by then, so the result is made from it, as pickle does.
  slot = is_again ? made_again_ : in_progress_;
  py::object made = make(node);
  if (slot.is(in_progress_) || slot.is(made_again_)) {
    slot = std::move(made);
    finish(node, slot);
  }
  --depth_;
  return slot;
}

py::object Values::make(const Node& node) {
  switch (node.kind) {
    case Kind::real:
      return steal(PyFloat_FromDouble(static_cast<const Real&>(node).number));
    case Kind::complex: {
      const auto& number = static_cast<const Complex&>(node);
      return steal(PyComplex_FromDoubles(number.real, number.imaginary));
    }
    case Kind::text:
      return text(static_cast<const Blob&>(node));
    case Kind::big_integer:
      return big_integer(static_cast<const Blob&>(node));
    case Kind::bytes:
      return copied(&PyBytes_FromStringAndSize, static_cast<const Blob&>(node).bytes);
    case Kind::byte_array:
      return copied(&PyByteArray_FromStringAndSize, static_cast<const Blob&>(node).bytes);
    case Kind::tuple:
      return tuple(static_cast<const Sequence&>(node));
    case Kind::list:
      return steal(PyList_New(0));
    case Kind::set:
      return set(static_cast<const Sequence&>(node));
    case Kind::frozenset:
      return steal(PyFrozenSet_New(set(static_cast<const Sequence&>(node)).ptr()));
    case Kind::dict:
      return steal(PyDict_New());
    default:
      return other(node);
  }
}

void Values::finish(const Node& node, const py::object& made) {
  switch (node.kind) {
    case Kind::list:
      for (const Value& item : static_cast<const Sequence&>(node).items) {
        require(PyList_Append(made.ptr(), value(item).ptr()));
      }
      return;
    case Kind::dict:
    case Kind::ordered_dict:
    case Kind::counter:
      return fill_mapping(static_cast<const Mapping&>(node), made);
    default:
      return;
  }
}

py::object Values::tuple(const Sequence& sequence) {
  py::object made = steal(PyTuple_New(static_cast<Py_ssize_t>(sequence.items.size())));
  Py_ssize_t i = 0;
  for (const Value& item : sequence.items) PyTuple_SET_ITEM(made.ptr(), i++, value(item).release().ptr());
  return made;
}

py::object Values::set(const Sequence& sequence) {
  py::object made = steal(PySet_New(nullptr));
  for (const Value& item : sequence.items) require(PySet_Add(made.ptr(), value(item).ptr()));
  return made;
}

void Values::fill_mapping(const Mapping& mapping, const py::object& made) {
  const auto set_item = PyODict_CheckExact(made.ptr()) ? &PyODict_SetItem : &PyDict_SetItem;
  for (const auto& [key, item] : mapping.items) {
    const py::object made_key = value(key);
    require(set_item(made.ptr(), made_key.ptr(), value(item).ptr()));
  }
}

}  // namespace zerocopy
