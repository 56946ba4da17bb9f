#include "binding/tensors.h"

#include <algorithm>
#include <utility>

#include "binding/transfer_plan.h"
#include "python/gil.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// The memory used at a time for storages that are inflated or swapped on their way to a device,
// unless a single storage needs more.
constexpr std::uint64_t kMaxConverted = std::uint64_t{16} << 20U;

}  // namespace

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

void add_dtypes_of_release() {
  for (const auto& [_, value] : py::dict(py::module_::import("torch").attr("__dict__"))) {
    if (!is_dtype(value.ptr())) continue;
    const auto name = py::str(value).cast<std::string>();  // "torch.float32", also for torch.float
    const ScalarType type = scalar_type_of(value.ptr());
    add_dtype(name.substr(name.find('.') + 1), static_cast<std::uint8_t>(item_size_of(type)),
              is_complex(type), is_complex(type) || is_floating_point(type));
  }
}

py::object LoadedStorage::untyped() const { return replacement ? replacement : steal(native.wrap()); }

py::object StoredTensors::device_of(const Storage& storage) const {
  if (destination_.transfer.is_none()) return py::none();
  if (!last_location_ || *last_location_ != storage.location) {  // most files use one location
    last_device_ =
        destination_.transfer.attr("device_of")(py::str(storage.location.data(), storage.location.size()));
    last_location_ = std::string(storage.location);
  }
  return last_device_;
}

std::vector<LoadedStorage> StoredTensors::staged(const py::object& device,
                                                 std::span<const Storage* const> storages) const {
  std::vector<LoadedStorage> made(storages.size());
  std::vector<std::size_t> plain;
  std::vector<std::size_t> others;
  std::vector<StagedStorage> staged_storages;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Record record = record_of(*storages[i]);
    const bool is_plain = content_.is_plain(record, *storages[i]->element);
    (is_plain ? plain : others).push_back(i);
    if (is_plain) staged_storages.push_back({content_.source().get(), record.extent});
  }
  const auto take = [&](const std::shared_ptr<TransferPlan>& plan, std::span<const std::size_t> which) {
    const py::object whole = destination_.transfer.attr("copy")(device, plan);
    for (std::size_t i = 0; i < which.size(); ++i) made[which[i]].native = plan->copied_storage(whole, i);
  };
  if (!plain.empty()) take(std::make_shared<TransferPlan>(std::move(staged_storages)), plain);
  for (std::size_t first = 0; first < others.size();) {
    std::vector<std::unique_ptr<const Source>> sources;
    std::uint64_t size = 0;
    std::size_t end = first;
    {
      const GilReleased released;
      for (; end < others.size() && size < kMaxConverted; ++end) {
        const Storage& storage = *storages[others[end]];
        Region bytes = content_.made(record_of(storage), *storage.element);
        size += bytes.size();
        sources.push_back(std::make_unique<const MemorySource>(std::move(bytes)));
      }
    }
    take(TransferPlan::of(std::move(sources)), std::span(others).subspan(first, end - first));
    first = end;
  }
  return made;
}

LoadedStorage StoredTensors::open(const Storage& storage) const {
  if (const py::object device = device_of(storage); !device.is_none()) {
    const Storage* const one = &storage;
    return std::move(staged(device, std::span(&one, 1)).front());
  }
  const Record record = record_of(storage);
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

LoadedStorage StoredTensors::placed(const Region& bytes, const Storage& storage) const {
  LoadedStorage stored{TorchStorage::over(bytes), py::object()};
  if (destination_.takes(storage)) {
    const py::object here = steal(stored.native.wrap());
    py::object there = destination_.restore(here, py::str(storage.location.data(), storage.location.size()));
    if (!there.is(here)) stored.replacement = std::move(there);
  }
  return stored;
}

LoadedStorage StoredTensors::part_of(const LoadedStorage& root, const Storage& view) {
  const py::slice bytes(static_cast<py::ssize_t>(view.begin),
                        static_cast<py::ssize_t>(view.begin + view.nbytes), 1);
  return {TorchStorage(), root.untyped()[bytes]};
}

py::object StoredTensors::typed(const LoadedStorage& stored, const Storage& storage) {
  return construction().attr("typed_storage")(stored.untyped(), dtypes().object(*storage.dtype));
}

py::object StoredTensors::over(const LoadedStorage& stored, const Tensor& tensor, const Shape& shape) {
  if (stored.replacement) {  // on another device, or over memory of another owner
    return construction().attr("tensor_over")(stored.replacement, dtypes().object(*tensor.dtype),
                                              tensor.offset, tuple_of(shape.size()), tuple_of(shape.stride()),
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
    : StoredTensors(content, std::move(destination), std::move(construction)),
      document_(document),
      records_(records),
      storages_(document.storages.size()),
      views_(document.views.size()) {
  const std::vector<const Storage*> staying = copy_to_devices(document);
  std::vector<Content::Need> needs;
  needs.reserve(staying.size());
  for (const Storage* storage : staying) needs.push_back({&records_[storage->index], storage->element});
  read_.resize(document.storages.size());
  const GilReleased released;
  std::vector<Region> read = content.read_storages(needs);
  for (std::size_t i = 0; i < staying.size(); ++i) read_[staying[i]->index] = std::move(read[i]);
}

// Returns the storages that stay on the CPU, or that `restore` moves.
std::vector<const Storage*> RealTensors::copy_to_devices(const Document& document) {
  std::vector<const Storage*> staying;
  std::vector<std::pair<py::object, std::vector<const Storage*>>> going;
  for (const Storage* storage : document.storages) {
    if (records_[storage->index].same_as) continue;
    const py::object device = device_of(*storage);
    if (device.is_none()) {
      staying.push_back(storage);
      continue;
    }
    auto found = std::ranges::find_if(going, [&](const auto& known) { return known.first.is(device); });
    if (found == going.end()) found = going.insert(found, {device, {}});
    found->second.push_back(storage);
  }
  for (const auto& [device, storages] : going) {
    std::vector<LoadedStorage> made = staged(device, storages);
    for (std::size_t i = 0; i < storages.size(); ++i) storages_[storages[i]->index] = std::move(made[i]);
  }
  return staying;
}

const LoadedStorage& RealTensors::stored(const Storage& storage) {
  if (storage.root == nullptr) {
    if (const auto same = records_[storage.index].same_as) return stored(*document_.storages[*same]);
  }
  std::optional<LoadedStorage>& known = (storage.root == nullptr ? storages_ : views_)[storage.index];
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

LoadedStorage GivenTensors::stored(const Storage& storage) {
  if (storage.root == nullptr) return {TorchStorage(), storage_at_(storage.index)};
  py::object& known = views_[storage.index];
  if (!known) known = part_of(stored(*storage.root), storage).replacement;
  return {TorchStorage(), known};
}

}  // namespace zerocopy
