// Makes torch's storages and tensors for a document.
//
//   Tensors ─┬─ StoredTensors ─┬─ RealTensors     made at once, for load
//            │                 └─ Lazy::Opened    made on request (lazy.cpp)
//            └─ Placeholders                      stand-ins that make the request (lazy.cpp)
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "binding/torch_bridge.h"
#include "checkpoint/content.h"
#include "pickle/document.h"
#include "pickle/geometry.h"

namespace zerocopy {

// A tensor's sizes and strides in torch's types.
struct Shape {
  explicit Shape(const Tensor& tensor);
  Shape(std::span<const std::int64_t> size, std::span<const std::int64_t> stride);

  std::span<const std::int64_t> size() const noexcept { return {sizes_.data(), dimensions_}; }
  std::span<const std::int64_t> stride() const noexcept { return {strides_.data(), dimensions_}; }

 private:
  std::size_t dimensions_;
  std::array<std::int64_t, kMaxDimensions> sizes_;
  std::array<std::int64_t, kMaxDimensions> strides_;
};

pybind11::tuple tuple_of(std::span<const std::int64_t> integers);

// torch.dtype objects and their numbers, by the core's names.
class DTypes {
 public:
  explicit DTypes(pybind11::object construction) : construction_(std::move(construction)) {}

  pybind11::object object(const DType& dtype) const { return construction_.attr("dtype")(dtype.name); }
  ScalarType number(const DType& dtype);

 private:
  pybind11::object construction_;
  std::vector<std::pair<const DType*, ScalarType>> known_;
};

// Tells the core about element types that only the running release has.
void add_dtypes_of_release();

// A storage that has been made.
struct LoadedStorage {
  TorchStorage native;
  pybind11::object replacement;  // its replacement by map_location, or the root's for a view; else null

  pybind11::object untyped() const;
};

// The target of storages, as zerocopy.loading.device.staging.Destination.
struct Destination {
  // Called once per storage with (UntypedStorage, location), as torch.load calls map_location. None
  // leaves every storage on the CPU.
  pybind11::object restore;
  // Skips the call for storages tagged "cpu".
  bool cpu_as_is;
  // A zerocopy.loading.device.staging.DeviceTransfer, which is asked first. device_of(location)
  // returns the device of a staged storage, and copy(device, plan) copies to it. None if no storage
  // is staged.
  pybind11::object transfer = pybind11::none();

  bool takes(const Storage& storage) const {
    return !restore.is_none() && !(cpu_as_is && storage.location == "cpu");
  }
};

// Makes the Python objects of a document's storages and tensors. `construction` is
// zerocopy.loading.objects.builder or a replacement.
class Tensors {
 public:
  explicit Tensors(pybind11::object construction)
      : construction_(std::move(construction)), dtypes_(construction_) {}
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  virtual ~Tensors() = default;

  virtual pybind11::object storage(const Storage& storage) = 0;
  virtual pybind11::object tensor(const Tensor& tensor) = 0;

  DTypes& dtypes() noexcept { return dtypes_; }

 protected:
  const pybind11::object& construction() const noexcept { return construction_; }

 private:
  pybind11::object construction_;
  DTypes dtypes_;
};

// Makes TypedStorages and Tensors from a file. `records` are those of the document's storages.
class StoredTensors : public Tensors {
 public:
  StoredTensors(const Content& content, const std::vector<Record>& records, Destination destination,
                pybind11::object construction)
      : Tensors(std::move(construction)),
        content_(content),
        records_(records),
        destination_(std::move(destination)) {}

 protected:
  // Returns the device that a storage is staged to, or None.
  pybind11::object device_of(const Storage& storage) const;
  // Copies storages to a device, in one allocation. Storages that must be inflated or swapped first
  // get further allocations.
  std::vector<LoadedStorage> staged(const pybind11::object& device,
                                    std::span<const Storage* const> storages) const;
  LoadedStorage open(const Storage& storage) const;
  LoadedStorage placed(const Region& bytes, const Storage& storage) const;
  static LoadedStorage part_of(const LoadedStorage& root, const Storage& view);
  pybind11::object typed(const LoadedStorage& stored, const Storage& storage);
  pybind11::object over(const LoadedStorage& stored, const Tensor& tensor) {
    return over(stored, tensor, Shape(tensor));
  }
  pybind11::object over(const LoadedStorage& stored, const Tensor& tensor, const Shape& shape);

  const Content& content() const noexcept { return content_; }
  const Record& record_of(const Storage& storage) const { return records_[storage.index]; }

 private:
  const Content& content_;
  const std::vector<Record>& records_;
  Destination destination_;
  mutable std::optional<std::string> last_location_;  // the last argument of device_of()
  mutable pybind11::object last_device_;
};

// Opens each storage once and keeps it. The constructor reads all storages that are not mapped, and
// copies storages to their device.
class RealTensors final : public StoredTensors {
 public:
  RealTensors(const Document& document, const Content& content, const std::vector<Record>& records,
              Destination destination, pybind11::object construction);

  pybind11::object storage(const Storage& storage) override { return typed(stored(storage), storage); }
  pybind11::object tensor(const Tensor& tensor) override { return over(stored(*tensor.storage), tensor); }

 private:
  const LoadedStorage& stored(const Storage& storage);
  std::vector<const Storage*> copy_to_devices(const Document& document);

  const Document& document_;
  std::vector<Region> read_;  // storages that are read and not mapped, until they are opened
  std::vector<std::optional<LoadedStorage>> storages_;
  std::vector<std::optional<LoadedStorage>> views_;
};

// Makes tensors over existing storages. `storage_at(i)` returns the document's i-th storage.
class GivenTensors final : public StoredTensors {
 public:
  GivenTensors(const Document& document, const Content& content, const std::vector<Record>& records,
               pybind11::object storage_at, pybind11::object construction)
      : StoredTensors(content, records, {pybind11::none(), true}, std::move(construction)),
        storage_at_(std::move(storage_at)),
        views_(document.views.size()) {}

  pybind11::object storage(const Storage& storage) override { return typed(stored(storage), storage); }
  pybind11::object tensor(const Tensor& tensor) override { return over(stored(*tensor.storage), tensor); }

 private:
  LoadedStorage stored(const Storage& storage);

  pybind11::object storage_at_;
  std::vector<pybind11::object> views_;
};

}  // namespace zerocopy
