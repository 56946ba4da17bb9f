#include "binding/tensors.h"

#include <algorithm>
#include <utility>

#include "binding/gil.h"
#include "binding/python.h"

namespace py = pybind11;

namespace zerocopy {

Shape::Shape(const Tensor& tensor) : dimensions_(tensor.size->items.size()) {
  for (std::size_t i = 0; i < dimensions_; ++i) {
    sizes_[i] = tensor.size->items[i].integer();
    strides_[i] = tensor.stride->items[i].integer();
  }
}

Shape::Shape(std::span<const std::int64_t> size, std::span<const std::int64_t> stride)
    : dimensions_(size.size()) {
  std::ranges::copy(size, sizes_.begin());
  std::ranges::copy(stride, strides_.begin());
}

py::tuple tuple_of(std::span<const std::int64_t> integers) {
  py::tuple made(integers.size());
  for (std::size_t i = 0; i < integers.size(); ++i) made[i] = integers[i];
  return made;
}

ScalarType DTypes::number(const DType& dtype) {
  for (const auto& [known, type] : known_) {
    if (known == &dtype) return type;
  }
  const ScalarType type = scalar_type_of(object(dtype).ptr());
  known_.emplace_back(&dtype, type);
  return type;
}

py::object Stored::untyped() const { return moved ? moved : steal(native.wrap()); }

Stored StoredTensors::open(const Storage& storage) const {
  const Record& record = record_of(storage);
  if (content_.placement(record, *storage.element).how == Placement::How::mapped) {
    return placed(content_.storage(record, *storage.element), storage);
  }
  Region bytes;
  {
    const GilReleased released;
    bytes = content_.storage(record, *storage.element);
  }
  return placed(bytes, storage);
}

Stored StoredTensors::placed(const Region& bytes, const Storage& storage) const {
  Stored stored{TorchStorage::over(bytes), py::object()};
  if (destination_.takes(storage)) {
    const py::object here = steal(stored.native.wrap());
    py::object there = destination_.restore(here, py::str(storage.location.data(), storage.location.size()));
    if (!there.is(here)) stored.moved = std::move(there);
  }
  return stored;
}

Stored StoredTensors::part_of(const Stored& root, const Storage& view) {
  const py::slice bytes(static_cast<py::ssize_t>(view.begin),
                        static_cast<py::ssize_t>(view.begin + view.nbytes), 1);
  return {TorchStorage(), root.untyped()[bytes]};
}

py::object StoredTensors::typed(const Stored& stored, const Storage& storage) {
  return construction().attr("typed_storage")(stored.untyped(), dtypes().object(*storage.dtype));
}

py::object StoredTensors::over(const Stored& stored, const Tensor& tensor, const Shape& shape) {
  if (stored.moved) {  // on another device, or over memory that is not ours
    return construction().attr("tensor_over")(stored.moved, dtypes().object(*tensor.dtype), tensor.offset,
                                              tuple_of(shape.size()), tuple_of(shape.stride()),
                                              tensor.requires_grad, tensor.conjugate, tensor.negative);
  }
  return steal(stored.native.tensor({.dtype = dtypes().number(*tensor.dtype),
                                     .offset = tensor.offset,
                                     .size = shape.size(),
                                     .stride = shape.stride(),
                                     .requires_grad = tensor.requires_grad,
                                     .conjugate = tensor.conjugate,
                                     .negative = tensor.negative}));
}

RealTensors::RealTensors(const Document& document, const Content& content, const std::vector<Record>& records,
                         Destination destination, py::object construction)
    : StoredTensors(content, records, std::move(destination), std::move(construction)),
      storages_(document.storages.size()),
      views_(document.views.size()) {
  std::vector<Content::Need> needs;
  needs.reserve(document.storages.size());
  for (const Storage* storage : document.storages) needs.push_back({&record_of(*storage), storage->element});
  const GilReleased released;
  read_ = content.read_storages(needs);
}

const Stored& RealTensors::stored(const Storage& storage) {
  std::optional<Stored>& known = (storage.root == nullptr ? storages_ : views_)[storage.index];
  if (known) return *known;
  if (storage.root != nullptr) {
    known = part_of(stored(*storage.root), storage);
  } else if (read_[storage.index].data() != nullptr) {
    known = placed(std::exchange(read_[storage.index], {}), storage);
  } else {
    known = open(storage);
  }
  return *known;
}

Stored GivenTensors::stored(const Storage& storage) {
  if (storage.root == nullptr) return {TorchStorage(), storage_at_(storage.index)};
  py::object& known = views_[storage.index];
  if (!known) known = part_of(stored(*storage.root), storage).moved;
  return {TorchStorage(), known};
}

}  // namespace zerocopy
