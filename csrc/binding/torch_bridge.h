// Storages and tensors of torch, by the table of functions that a bridge to the running release fills.
//
// Two things fill the table of bridge/table.h: a shared object that was compiled for a release, and
// binding/portable_bridge.cpp, which needs nothing of torch but Python.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <string>

#include "bridge/table.h"
#include "memory/region.h"

namespace zerocopy {

// The bridge in use: portable_bridge() until load_bridge() succeeds.
const ZerocopyBridge& bridge() noexcept;

// Loads the shared object of a bridge, whose stamp the caller has read in the file. Throws UnsupportedError
// if it cannot be used; the bridge in use stays. Storages of two bridges must not meet, so it is called
// before the first storage is made.
void load_bridge(const std::string& path, const std::string& stamp);

// c10::ScalarType behind a bridge; the portable bridge has numbers of its own.
enum class ScalarType : std::int32_t {};

bool is_dtype(PyObject* object);
// Throws std::invalid_argument if the object is not a torch.dtype.
ScalarType scalar_type_of(PyObject* torch_dtype);
std::int64_t item_size_of(ScalarType type);
bool is_complex(ScalarType type);
bool is_floating_point(ScalarType type);

struct View {
  ScalarType dtype;
  std::int64_t offset;  // in elements, as the two below
  std::span<const std::int64_t> size;
  std::span<const std::int64_t> stride;
  bool requires_grad;
  bool conjugate;
  bool negative;
};

// One reference to a storage of torch.
class TorchStorage {
 public:
  // Returns a CPU storage over the region and keeps the region alive. The storage cannot be resized, as the
  // storages of torch.load cannot.
  static TorchStorage over(const Region& region);

  // Returns a storage over some bytes of an existing torch.UntypedStorage, on its device, and keeps that
  // storage alive. Throws FormatError when the bytes leave it. Tensors over the result are for the CPU and
  // CUDA.
  static TorchStorage within(PyObject* untyped_storage, Extent extent);

  // Returns a storage over the bytes of an existing torch.UntypedStorage, on its device. The owner alone
  // keeps these bytes alive.
  static TorchStorage kept(PyObject* untyped_storage, Share owner);

  // Returns a reference to an existing torch.UntypedStorage.
  static TorchStorage of(PyObject* untyped_storage);

  TorchStorage() = default;
  TorchStorage(TorchStorage&& other) noexcept;
  TorchStorage& operator=(TorchStorage&& other) noexcept;
  TorchStorage(const TorchStorage&) = delete;
  TorchStorage& operator=(const TorchStorage&) = delete;
  ~TorchStorage();

  explicit operator bool() const noexcept { return storage_ != nullptr; }
  std::uint64_t nbytes() const;
  bool is_cpu() const;
  ByteSpan bytes() const;      // of a storage on the CPU
  std::byte* address() const;  // on any device: not to be read through
  Region region() const;       // the argument of over(); empty for a storage that others made

  // New references: wrap() returns a torch.UntypedStorage, tensor() a torch.Tensor. The view is not checked
  // against the storage: pickle/geometry.h has done that.
  PyObject* wrap() const;
  PyObject* tensor(const View& view) const;

 private:
  friend class WeakTorchStorage;

  explicit TorchStorage(void* storage) noexcept : storage_(storage) {}

  void* storage_ = nullptr;  // of the bridge
};

// Knows a storage as long as others keep it.
class WeakTorchStorage {
 public:
  WeakTorchStorage() = default;
  explicit WeakTorchStorage(const TorchStorage& storage);
  WeakTorchStorage(WeakTorchStorage&& other) noexcept;
  WeakTorchStorage& operator=(WeakTorchStorage&& other) noexcept;
  WeakTorchStorage(const WeakTorchStorage&) = delete;
  WeakTorchStorage& operator=(const WeakTorchStorage&) = delete;
  ~WeakTorchStorage();

  // Returns an empty TorchStorage once the storage is gone.
  TorchStorage lock() const;

 private:
  void* weak_ = nullptr;  // of the bridge
};

// Returns a new reference to an object of `type`, a Python subclass of torch.Tensor that adds nothing to its
// layout: a tensor of that shape without a storage, whose operations all come to the class's
// __torch_dispatch__.
PyObject* placeholder(const View& view, PyTypeObject* type);

}  // namespace zerocopy
