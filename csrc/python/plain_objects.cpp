#include "python/plain_objects.h"

#include <string>

#include "memory/errors.h"
#include "pickle/dtype.h"
#include "pickle/machine.h"
#include "python/buffer.h"
#include "python/gil.h"
#include "python/names.h"
#include "python/python.h"
#include "python/record.h"
#include "python/values.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

const RecordType& global_type() {
  static const RecordType type("zerocopy._core.PlainGlobal", {"module", "name"});
  return type;
}

// An object of a file: the global that makes it, the arguments and the last state. Like objects of
// most classes, it is equal only to itself, and can be a dict key.
struct PlainObject {
  py::object callable;
  py::object arguments;
  py::object state;
};

class PlainObjects final : public Values {
 public:
  using Values::Values;

 private:
  py::object other(const Node& node) override {
    switch (node.kind) {
      case Kind::byte_string:
        return text_of(static_cast<const Blob&>(node).bytes.text());
      case Kind::size:
        return tuple(static_cast<const Sequence&>(node));
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
};

// Reads a pickle outside of any archive, with stubs for unknown objects.
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
