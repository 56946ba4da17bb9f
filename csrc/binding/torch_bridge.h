// Everything zerocopy asks of libtorch, in terms that need none of its headers.
//
// torch's headers cost up to 43 s to compile and change from release to release, so
// torch_bridge.cpp is the one file that includes them. The calls it uses have one signature from
// 1.13 to 2.14: see "Foreign things" in DESIGN.md.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>

#include "memory/region.h"

namespace zerocopy {

// c10::ScalarType, the number behind a torch.dtype.
enum class ScalarType : std::int8_t {};

bool is_dtype(PyObject* object);
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

// A share in a c10::StorageImpl.
class TorchStorage {
 public:
  // A CPU storage over the region, which it keeps alive. It cannot be resized, as the storages of
  // torch.load cannot.
  static TorchStorage over(const Region& region);

  // A storage over some bytes of an existing torch.UntypedStorage, on whichever device, which it keeps alive.
  // Throws FormatError when they leave it. Tensors over it are for the CPU and for CUDA.
  static TorchStorage within(PyObject* untyped_storage, Extent extent);

  // The same bytes as an existing torch.UntypedStorage has, on whichever device, kept alive by the owner
  // alone.
  static TorchStorage kept(PyObject* untyped_storage, Share owner);

  // A share in an existing torch.UntypedStorage.
  static TorchStorage of(PyObject* untyped_storage);

  TorchStorage() = default;
  TorchStorage(TorchStorage&& other) noexcept;
  TorchStorage& operator=(TorchStorage&& other) noexcept;
  TorchStorage(const TorchStorage&) = delete;
  TorchStorage& operator=(const TorchStorage&) = delete;
  ~TorchStorage();

  explicit operator bool() const noexcept { return impl_ != nullptr; }
  std::uint64_t nbytes() const;
  bool is_cpu() const;
  ByteSpan bytes() const;      // of one on the CPU
  std::byte* address() const;  // of one on any device: not to be read through
  Region region() const;       // what over() was given; none of another's storage

  // New references. wrap() gives a torch.UntypedStorage, tensor() a torch.Tensor. The view is not
  // checked against the storage: pickle/geometry.h has done that.
  PyObject* wrap() const;
  PyObject* tensor(const View& view) const;

 private:
  friend class WeakTorchStorage;

  explicit TorchStorage(void* impl) noexcept : impl_(impl) {}

  void* impl_ = nullptr;  // c10::StorageImpl, one reference is ours
};

// Knows a storage as long as somebody else keeps it.
class WeakTorchStorage {
 public:
  WeakTorchStorage() = default;
  explicit WeakTorchStorage(const TorchStorage& storage);
  WeakTorchStorage(WeakTorchStorage&& other) noexcept;
  WeakTorchStorage& operator=(WeakTorchStorage&& other) noexcept;
  WeakTorchStorage(const WeakTorchStorage&) = delete;
  WeakTorchStorage& operator=(const WeakTorchStorage&) = delete;
  ~WeakTorchStorage();

  // Empty when nobody does.
  TorchStorage lock() const;

 private:
  void* impl_ = nullptr;  // c10::StorageImpl, one weak reference is ours
};

// A new reference to an object of `type`, a Python subclass of torch.Tensor that adds nothing to its layout:
// a tensor of that shape without a storage, whose operations all come to the class's __torch_dispatch__.
PyObject* placeholder(const View& view, PyTypeObject* type);

}  // namespace zerocopy
