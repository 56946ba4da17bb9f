#include "binding/torch_bridge.h"

#include <dlfcn.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "binding/portable_bridge.h"
#include "python/python.h"

namespace zerocopy {
namespace {

void retain_owner(void* owner) { OwnerRef(static_cast<Owner*>(owner)).release(); }

// Runs on any thread, with or without the GIL, perhaps after the interpreter has ended. Owners of
// mappings need no Python. Owners of Python buffers handle this (buffer.cpp).
void release_owner(void* owner) { OwnerRef::adopt(static_cast<Owner*>(owner)); }

constexpr ZerocopyBridgeHost kHost{ZEROCOPY_BRIDGE_ABI, &retain_owner, &release_owner};

// A copy, so that a call loads one address and not two.
ZerocopyBridge table = *portable_bridge(&kHost);

void* required(void* storage) {
  if (storage == nullptr) throw pybind11::error_already_set();
  return storage;
}

ZerocopyTensorView plain(const View& view) {
  return {.dtype = static_cast<std::int32_t>(view.dtype),
          .requires_grad = view.requires_grad ? 1 : 0,
          .conjugate = view.conjugate ? 1 : 0,
          .negative = view.negative ? 1 : 0,
          .offset = view.offset,
          .dimensions = view.size.size(),
          .size = view.size.data(),
          .stride = view.stride.data()};
}

// The handle is never closed: torch keeps function pointers in storages until the process ends.
ZerocopyBridgeEntry entry_of(const std::string& path) {
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const found = handle == nullptr ? nullptr : ::dlsym(handle, "zerocopy_bridge");
  if (found == nullptr) {
    const char* const fault = ::dlerror();
    throw UnsupportedError(fault == nullptr ? path + " lacks the function zerocopy_bridge" : fault);
  }
  ZerocopyBridgeEntry entry = nullptr;
  static_assert(sizeof found == sizeof entry);
  std::memcpy(&entry, &found, sizeof entry);
  return entry;
}

}  // namespace

const ZerocopyBridge& bridge() noexcept { return table; }

void load_bridge(const std::string& path, const std::string& stamp) {
  const ZerocopyBridge* const loaded = entry_of(path)(&kHost);
  if (loaded == nullptr || loaded->abi != ZEROCOPY_BRIDGE_ABI || loaded->size != sizeof(ZerocopyBridge)) {
    throw UnsupportedError(path + " is for another release of zerocopy: its table of functions differs");
  }
  if (loaded->stamp != stamp) throw UnsupportedError(path + " has another stamp: \"" + loaded->stamp + "\"");
  table = *loaded;
}

bool is_dtype(PyObject* object) { return table.is_dtype(object) != 0; }

ScalarType scalar_type_of(PyObject* torch_dtype) {
  if (!is_dtype(torch_dtype)) throw std::invalid_argument("expected a torch.dtype");
  return static_cast<ScalarType>(table.scalar_type(torch_dtype));
}

std::int64_t item_size_of(ScalarType type) { return table.item_size(static_cast<std::int32_t>(type)); }

bool is_complex(ScalarType type) { return table.is_complex(static_cast<std::int32_t>(type)) != 0; }

bool is_floating_point(ScalarType type) {
  return table.is_floating_point(static_cast<std::int32_t>(type)) != 0;
}

TorchStorage TorchStorage::over(const Region& region) {
  return TorchStorage(
      required(table.storage_over(region.data(), region.size(), OwnerRef(region.owner()).release())));
}

TorchStorage TorchStorage::within(PyObject* untyped_storage, Extent extent) {
  const TorchStorage whole = of(untyped_storage);
  if (!extent.fits(whole.nbytes())) {
    throw FormatError("a part of " + std::to_string(extent.size) + " bytes at " + hex(extent.offset) +
                      " leaves its storage of " + std::to_string(whole.nbytes()) + " bytes");
  }
  return TorchStorage(required(table.storage_within(whole.storage_, extent.offset, extent.size)));
}

TorchStorage TorchStorage::kept(PyObject* untyped_storage, OwnerRef owner) {
  const TorchStorage whole = of(untyped_storage);
  return TorchStorage(required(table.storage_kept(whole.storage_, owner.release())));
}

TorchStorage TorchStorage::of(PyObject* untyped_storage) {
  return TorchStorage(required(table.storage_of(untyped_storage)));
}

TorchStorage::TorchStorage(TorchStorage&& other) noexcept
    : storage_(std::exchange(other.storage_, nullptr)) {}

TorchStorage& TorchStorage::operator=(TorchStorage&& other) noexcept {
  std::swap(storage_, other.storage_);
  return *this;
}

TorchStorage::~TorchStorage() {
  if (storage_ != nullptr) table.storage_release(storage_);
}

std::uint64_t TorchStorage::nbytes() const { return table.storage_nbytes(storage_); }

bool TorchStorage::is_cpu() const { return table.storage_is_cpu(storage_) != 0; }

ByteSpan TorchStorage::bytes() const { return {address(), nbytes()}; }

std::byte* TorchStorage::address() const { return static_cast<std::byte*>(table.storage_data(storage_)); }

Region TorchStorage::region() const {
  auto* const owner = static_cast<Owner*>(table.storage_owner(storage_));
  if (owner == nullptr) return {};
  return {address(), static_cast<std::size_t>(nbytes()), OwnerRef::adopt(owner)};
}

PyObject* TorchStorage::wrap() const { return table.wrap(storage_); }

PyObject* TorchStorage::tensor(const View& view) const {
  const ZerocopyTensorView same = plain(view);
  return table.tensor(storage_, &same);
}

WeakTorchStorage::WeakTorchStorage(const TorchStorage& storage)
    : weak_(required(table.weak_of(storage.storage_))) {}

WeakTorchStorage::WeakTorchStorage(WeakTorchStorage&& other) noexcept
    : weak_(std::exchange(other.weak_, nullptr)) {}

WeakTorchStorage& WeakTorchStorage::operator=(WeakTorchStorage&& other) noexcept {
  std::swap(weak_, other.weak_);
  return *this;
}

WeakTorchStorage::~WeakTorchStorage() {
  if (weak_ != nullptr) table.weak_release(weak_);
}

TorchStorage WeakTorchStorage::lock() const {
  return weak_ == nullptr ? TorchStorage() : TorchStorage(table.weak_lock(weak_));
}

PyObject* placeholder(const View& view, PyTypeObject* type) {
  const ZerocopyTensorView same = plain(view);
  return table.placeholder(&same, type);
}

}  // namespace zerocopy
