// torch's storages and tensors, through the table of functions of a bridge to the running release.
//
// The table of bridge/table.h is filled by a shared object compiled for the release, or by
// binding/portable_bridge.cpp, which uses only torch's Python API.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <string>

#include "bridge/table.h"
#include "memory/region.h"

namespace zerocopy {

// Returns the bridge in use: portable_bridge() until load_bridge() succeeds.
const ZerocopyBridge& bridge() noexcept;

// Loads the shared object of a bridge, whose stamp the caller has read from the file. Throws
// UnsupportedError and keeps the current bridge if the new one is unusable. Call this before the
// first storage is made, since storages of two bridges must not mix.
void load_bridge(const std::string& path, const std::string& stamp);

// c10::ScalarType for a compiled bridge. The portable bridge uses its own numbers.
enum class ScalarType : std::int32_t {};

bool is_dtype(PyObject* object);
// Throws std::invalid_argument if the object is not a torch.dtype.
ScalarType scalar_type_of(PyObject* torch_dtype);
std::int64_t item_size_of(ScalarType type);
bool is_complex(ScalarType type);
bool is_floating_point(ScalarType type);

struct View {
  ScalarType dtype;
  std::int64_t offset;  // in elements, as the sizes and strides
  std::span<const std::int64_t> size;
  std::span<const std::int64_t> stride;
  bool requires_grad;
  bool conjugate;
  bool negative;
};

// A reference to a storage of torch.
class TorchStorage {
 public:
  // Returns a CPU storage over the region, which it keeps alive. Like storages of torch.load, it
  // cannot be resized.
  static TorchStorage over(const Region& region);

  // Returns a storage over a part of an existing torch.UntypedStorage, on its device, and keeps
  // that storage alive. Throws FormatError when the part exceeds the storage. Tensors over it
  // support the CPU and CUDA.
  static TorchStorage within(PyObject* untyped_storage, Extent extent);

  // Returns a storage over the bytes of an existing torch.UntypedStorage, on its device. Only the
  // owner keeps these bytes alive.
  static TorchStorage kept(PyObject* untyped_storage, OwnerRef owner);

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
  ByteSpan bytes() const;      // CPU storages only
  std::byte* address() const;  // on any device; do not read through this pointer
  Region region() const;       // the argument of over(); empty for storages that other code made

  // Both return new references: wrap() a torch.UntypedStorage, tensor() a torch.Tensor. The view
  // must have passed the checks of pickle/geometry.h.
  PyObject* wrap() const;
  PyObject* tensor(const View& view) const;

 private:
  friend class WeakTorchStorage;

  explicit TorchStorage(void* storage) noexcept : storage_(storage) {}

  void* storage_ = nullptr;  // owned through the bridge
};

// A weak reference to a storage.
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
  void* weak_ = nullptr;  // owned through the bridge
};

// Returns a new reference to an object of `type`, a Python subclass of torch.Tensor with the same
// layout. It is a tensor of that shape without a storage. All its operations go to the class's
// __torch_dispatch__.
PyObject* placeholder(const View& view, PyTypeObject* type);

}  // namespace zerocopy
