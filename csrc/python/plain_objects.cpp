#include "python/plain_objects.h"

#include <string>
#include <vector>

#include "memory/errors.h"
#include "pickle/dtype.h"
#include "pickle/machine.h"
#include "python/buffer.h"
#include "python/gil.h"
#include "python/names.h"
#include "python/python.h"
#include "python/record.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

const RecordType& global_type() {
  static const RecordType type("zerocopy._core.PlainGlobal", {"module", "name"});
  return type;
}

// An object of a file: the global that makes it, the arguments and the last state. As for objects of
// most classes, each is equal to itself alone, and may be the key of a dict.
struct PlainObject {
  py::object callable;
  py::object arguments;
  py::object state;
};

class PlainObjects {
 public:
  explicit PlainObjects(const Document& document) : made_(document.slots()) {}

  py::object value(const Value& value) {
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

 private:
  // Makes each node once. A container is stored before it is filled, so it can contain itself.
  py::object node(const Node& node) {
    py::object& slot = made_[node.slot];
    if (slot.is(in_progress_)) throw UnsupportedError("pickle: a value is among its own arguments");
    if (slot) return slot;
    if (++depth_ > Document::kMaxNesting) throw FormatError(Document::kNestingMessage);
    slot = in_progress_;
    slot = make(node);
    if (node.kind == Kind::list) fill(static_cast<const Sequence&>(node), slot);
    if (is_mapping(node)) fill(static_cast<const Mapping&>(node), slot);
    --depth_;
    return slot;
  }

  static bool is_mapping(const Node& node) {
    return node.kind == Kind::dict || node.kind == Kind::ordered_dict || node.kind == Kind::counter;
  }

  py::object make(const Node& node) {
    switch (node.kind) {
      case Kind::real:
        return py::float_(static_cast<const Real&>(node).number);
      case Kind::complex: {
        const auto& number = static_cast<const Complex&>(node);
        return steal(PyComplex_FromDoubles(number.real, number.imaginary));
      }
      case Kind::text:
      case Kind::byte_string:
        return text_of(static_cast<const Blob&>(node).bytes.text());
      case Kind::big_integer: {
        const auto type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
        const py::object bytes = copied(&PyBytes_FromStringAndSize, static_cast<const Blob&>(node).bytes);
        return type.attr("from_bytes")(bytes, "little", py::arg("signed") = true);
      }
      case Kind::bytes:
        return copied(&PyBytes_FromStringAndSize, static_cast<const Blob&>(node).bytes);
      case Kind::byte_array:
        return copied(&PyByteArray_FromStringAndSize, static_cast<const Blob&>(node).bytes);
      case Kind::tuple:
      case Kind::size:
        return tuple(static_cast<const Sequence&>(node));
      case Kind::list:
        return steal(PyList_New(0));
      case Kind::set:
        return set(static_cast<const Sequence&>(node));
      case Kind::frozenset:
        return steal(PyFrozenSet_New(set(static_cast<const Sequence&>(node)).ptr()));
      case Kind::dict:
      case Kind::ordered_dict:
      case Kind::counter:
        return steal(PyDict_New());
      case Kind::global:
        return global(static_cast<const Global&>(node));
      case Kind::object:
        return object(static_cast<const Object&>(node));
      default:
        throw UnsupportedError("pickle: expected plain values, found a tensor, a storage or a device");
    }
  }

  py::object tuple(const Sequence& sequence) {
    py::object made = steal(PyTuple_New(static_cast<Py_ssize_t>(sequence.items.size())));
    Py_ssize_t i = 0;
    for (const Value& item : sequence.items) PyTuple_SET_ITEM(made.ptr(), i++, value(item).release().ptr());
    return made;
  }

  py::object set(const Sequence& sequence) {
    py::object made = steal(PySet_New(nullptr));
    for (const Value& item : sequence.items) require(PySet_Add(made.ptr(), value(item).ptr()));
    return made;
  }

  void fill(const Sequence& sequence, const py::object& list) {
    for (const Value& item : sequence.items) require(PyList_Append(list.ptr(), value(item).ptr()));
  }

  void fill(const Mapping& mapping, const py::object& dict) {
    for (const auto& [key, item] : mapping.items) {
      const py::object made_key = value(key);
      require(PyDict_SetItem(dict.ptr(), made_key.ptr(), value(item).ptr()));
    }
  }

  static py::object global(const Global& global) {
    return global_type().make(text_of(global.module), text_of(global.name));
  }

  // A later state replaces an earlier one.
  py::object object(const Object& object) {
    const Node* called = object.called;
    const py::object callable = node(called != nullptr ? *called : *object.callable);
    py::object state = py::none();
    for (const Object::Step& step : object.steps) {
      if (step.effect != Object::Effect::state)
        throw FormatError("pickle: a " + std::string(object.callable->name) + " is not a container");
      state = value(step.value);
    }
    return py::cast(PlainObject{callable, tuple(*object.arguments), state});
  }

  std::vector<py::object> made_;  // by slot
  const py::object in_progress_ = py::reinterpret_borrow<py::object>(Py_Ellipsis);  // no pickle makes one
  int depth_ = 0;
};

// Reads a pickle that no archive holds, with stubs for what is unknown.
Document read_bare_pickle(const Region& pickle) {
  const GilReleased released;
  return read_pickle(pickle, {.stubs = true});
}

py::object unpickled(const py::object& buffer) {
  const Document document = read_bare_pickle(region_of_buffer(buffer.ptr(), Access::any));
  return PlainObjects(document).value(document.root);
}

std::uint64_t itemsize(const std::string& dtype) {
  const DType* known = dtype_by_name(dtype);
  return known == nullptr ? 0 : known->size;
}

}  // namespace

void register_plain_objects(py::module_& module) {
  module.attr("PlainGlobal") = global_type().type();
  py::class_<PlainObject>(module, "PlainObject")
      .def_readonly("callable", &PlainObject::callable)
      .def_readonly("arguments", &PlainObject::arguments)
      .def_readonly("state", &PlainObject::state);
  module.def("unpickled", &unpickled, py::arg("pickle"));
  module.def("itemsize", &itemsize, py::arg("dtype"));
}

}  // namespace zerocopy
