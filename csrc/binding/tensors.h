// What a document says about storages and tensors, as torch's objects.
//
//   Tensors ─┬─ StoredTensors ─┬─ RealTensors     at once: what load returns
//            │                 └─ Lazy::Opened    when they are asked for (lazy.cpp)
//            └─ Placeholders                      what asks for them (lazy.cpp)
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

// A tensor's sizes and strides as torch takes them.
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

// torch.dtype objects and their numbers by the names of the core.
class DTypes {
 public:
  explicit DTypes(pybind11::object construction) : construction_(std::move(construction)) {}

  pybind11::object object(const DType& dtype) const { return construction_.attr("dtype")(dtype.name); }
  ScalarType number(const DType& dtype);

 private:
  pybind11::object construction_;
  std::vector<std::pair<const DType*, ScalarType>> known_;
};

// Has the core know the element types that only the running release has.
void add_dtypes_of_release();

// A storage that is there.
struct Stored {
  TorchStorage native;
  pybind11::object moved;  // what is used instead of it, from map_location or a part of another; else null

  pybind11::object untyped() const;
};

// Where storages go: zerocopy._torch.restore_function, and zerocopy.loading.device.staging.
struct Destination {
  // Called once per storage with (UntypedStorage, location), as torch.load calls map_location;
  // None leaves every storage where it is, on the CPU.
  pybind11::object restore;
  // Storages tagged "cpu" need not be asked about.
  bool cpu_as_is;
  // A zerocopy.loading.device.staging.DeviceTransfer, which is asked first. device_of(location) returns the
  // device of a staged storage, and copy(device, plan) copies to it. None if no storage is staged.
  pybind11::object transfer = pybind11::none();

  bool takes(const Storage& storage) const {
    return !restore.is_none() && !(cpu_as_is && storage.location == "cpu");
  }
};

// Makes the Python objects for the storages and tensors of a document. `construction` is
// zerocopy.loading.objects.builder, or what stands in for it.
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

// Those of a file: TypedStorages, and Tensors over them. `records` are those of the document's storages.
class StoredTensors : public Tensors {
 public:
  StoredTensors(const Content& content, const std::vector<Record>& records, Destination destination,
                pybind11::object construction)
      : Tensors(std::move(construction)),
        content_(content),
        records_(records),
        destination_(std::move(destination)) {}

 protected:
  // The device that a storage is staged to, or None.
  pybind11::object device_of(const Storage& storage) const;
  // Storages on a device, in one allocation; those that have to be inflated or swapped first in others.
  std::vector<Stored> staged(const pybind11::object& device, std::span<const Storage* const> storages) const;
  Stored open(const Storage& storage) const;
  Stored placed(const Region& bytes, const Storage& storage) const;
  static Stored part_of(const Stored& root, const Storage& view);
  pybind11::object typed(const Stored& stored, const Storage& storage);
  pybind11::object over(const Stored& stored, const Tensor& tensor) {
    return over(stored, tensor, Shape(tensor));
  }
  pybind11::object over(const Stored& stored, const Tensor& tensor, const Shape& shape);

  const Content& content() const noexcept { return content_; }
  const Record& record_of(const Storage& storage) const { return records_[storage.index]; }

 private:
  const Content& content_;
  const std::vector<Record>& records_;
  Destination destination_;
  mutable std::optional<std::string> asked_;  // what device_of() was asked last
  mutable pybind11::object answer_;
};

// Each storage is opened once, and kept as long as this. Those that have to be read are read at once, here
// and now, and so are those that go to a device.
class RealTensors final : public StoredTensors {
 public:
  RealTensors(const Document& document, const Content& content, const std::vector<Record>& records,
              Destination destination, pybind11::object construction);

  pybind11::object storage(const Storage& storage) override { return typed(stored(storage), storage); }
  pybind11::object tensor(const Tensor& tensor) override { return over(stored(*tensor.storage), tensor); }

 private:
  const Stored& stored(const Storage& storage);
  std::vector<const Storage*> carry_all(const Document& document);

  const Document& document_;
  std::vector<Region> read_;  // those that are read and not mapped, until they are opened
  std::vector<std::optional<Stored>> storages_;
  std::vector<std::optional<Stored>> views_;
};

// Over storages that are elsewhere already: `storage_at` gives that of a number, by the order of the
// document's.
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
  Stored stored(const Storage& storage);

  pybind11::object storage_at_;
  std::vector<pybind11::object> views_;
};

}  // namespace zerocopy
