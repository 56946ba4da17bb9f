#include "binding/torch_bridge.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <stdexcept>
#include <utility>

namespace zerocopy {
namespace {

using Impl = c10::intrusive_ptr<c10::StorageImpl>;
using WeakImpl = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Runs on any thread, with or without the GIL, perhaps after the interpreter is gone. The owner of
// a mapping needs no Python; the owner of a Python buffer looks after itself (buffer.cpp).
void release_share(void* context) { Share::adopt(static_cast<Owner*>(context)); }

// Of a part of another storage.
void release_whole(void* context) { Impl::reclaim(static_cast<c10::StorageImpl*>(context)); }

c10::Storage share(void* impl) {
  return c10::Storage(Impl::reclaim_copy(static_cast<c10::StorageImpl*>(impl)));
}

c10::DispatchKeySet keys_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

}  // namespace

bool is_dtype(PyObject* object) { return THPDtype_Check(object); }

ScalarType scalar_type_of(PyObject* torch_dtype) {
  if (!is_dtype(torch_dtype)) throw std::invalid_argument("not a torch.dtype");
  const auto type = reinterpret_cast<const THPDtype*>(torch_dtype)->scalar_type;
  return static_cast<ScalarType>(type);
}

std::int64_t item_size_of(ScalarType type) {
  return static_cast<std::int64_t>(c10::elementSize(static_cast<c10::ScalarType>(type)));
}

bool is_complex(ScalarType type) { return c10::isComplexType(static_cast<c10::ScalarType>(type)); }

bool is_floating_point(ScalarType type) { return c10::isFloatingType(static_cast<c10::ScalarType>(type)); }

TorchStorage TorchStorage::over(const Region& region) {
  c10::DataPtr data(region.data(), Share(region.owner()).release(), &release_share, c10::DeviceType::CPU);
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                    static_cast<std::int64_t>(region.size()), std::move(data),
                                                    /*allocator=*/nullptr, /*resizable=*/false);
  return TorchStorage(impl.release());
}

TorchStorage TorchStorage::within(PyObject* untyped_storage, Extent extent) {
  TorchStorage whole = of(untyped_storage);
  if (!extent.fits(whole.nbytes())) throw FormatError("a part that leaves its storage");
  const c10::DataPtr& data = static_cast<const c10::StorageImpl*>(whole.impl_)->data_ptr();
  const c10::Device device = data.device();
  void* const begin = extent.size == 0 ? nullptr : static_cast<std::byte*>(data.get()) + extent.offset;
  c10::DataPtr part(begin, std::exchange(whole.impl_, nullptr), &release_whole, device);
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                    static_cast<std::int64_t>(extent.size), std::move(part),
                                                    /*allocator=*/nullptr, /*resizable=*/false);
  return TorchStorage(impl.release());
}

TorchStorage TorchStorage::kept(PyObject* untyped_storage, Share owner) {
  const TorchStorage whole = of(untyped_storage);
  const c10::DataPtr& data = static_cast<const c10::StorageImpl*>(whole.impl_)->data_ptr();
  c10::DataPtr same(data.get(), owner.release(), &release_share, data.device());
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(whole.nbytes()), std::move(same),
      /*allocator=*/nullptr, /*resizable=*/false);
  return TorchStorage(impl.release());
}

TorchStorage TorchStorage::of(PyObject* untyped_storage) {
  if (!torch::isStorage(untyped_storage)) throw std::invalid_argument("not a storage");
  c10::Storage storage = torch::createStorage(untyped_storage);
  return TorchStorage(storage.unsafeReleaseStorageImpl());
}

TorchStorage::TorchStorage(TorchStorage&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}

TorchStorage& TorchStorage::operator=(TorchStorage&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

TorchStorage::~TorchStorage() { Impl::reclaim(static_cast<c10::StorageImpl*>(impl_)); }

std::uint64_t TorchStorage::nbytes() const { return static_cast<c10::StorageImpl*>(impl_)->nbytes(); }

bool TorchStorage::is_cpu() const { return static_cast<c10::StorageImpl*>(impl_)->device().is_cpu(); }

ByteSpan TorchStorage::bytes() const {
  const auto* impl = static_cast<const c10::StorageImpl*>(impl_);
  return {static_cast<const std::byte*>(impl->data_ptr().get()), impl->nbytes()};
}

std::byte* TorchStorage::address() const {
  return static_cast<std::byte*>(static_cast<const c10::StorageImpl*>(impl_)->data_ptr().get());
}

Region TorchStorage::region() const {
  const c10::DataPtr& data = static_cast<const c10::StorageImpl*>(impl_)->data_ptr();
  if (data.get_deleter() != &release_share) return {};
  Share lent = Share::adopt(static_cast<Owner*>(data.get_context()));
  Region region(static_cast<std::byte*>(data.get()), static_cast<std::size_t>(nbytes()), lent);
  lent.release();  // the storage's own
  return region;
}

PyObject* TorchStorage::wrap() const { return torch::createPyObject(share(impl_)); }

PyObject* TorchStorage::tensor(const View& view) const {
  const auto type = static_cast<c10::ScalarType>(view.dtype);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      share(impl_), keys_of(static_cast<const c10::StorageImpl*>(impl_)->device()),
      c10::scalarTypeToTypeMeta(type));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(c10::IntArrayRef(view.size.data(), view.size.size()),
                              c10::IntArrayRef(view.stride.data(), view.stride.size()), view.offset);
  if (view.conjugate) impl->_set_conj(true);
  if (view.negative) impl->_set_neg(true);
  if (view.requires_grad) tensor.set_requires_grad(true);
  return THPVariable_Wrap(std::move(tensor));
}

WeakTorchStorage::WeakTorchStorage(const TorchStorage& storage) {
  const auto shared = Impl::reclaim_copy(static_cast<c10::StorageImpl*>(storage.impl_));
  impl_ = WeakImpl(shared).release();
}

WeakTorchStorage::WeakTorchStorage(WeakTorchStorage&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)) {}

WeakTorchStorage& WeakTorchStorage::operator=(WeakTorchStorage&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

WeakTorchStorage::~WeakTorchStorage() { WeakImpl::reclaim(static_cast<c10::StorageImpl*>(impl_)); }

TorchStorage WeakTorchStorage::lock() const {
  WeakImpl weak = WeakImpl::reclaim(static_cast<c10::StorageImpl*>(impl_));
  TorchStorage locked(weak.lock().release());
  weak.release();  // impl_ goes on holding it
  return locked;
}

PyObject* placeholder(const View& view, PyTypeObject* type) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(view.dtype)), c10::Device(c10::DeviceType::CPU));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(c10::IntArrayRef(view.size.data(), view.size.size()),
                              c10::IntArrayRef(view.stride.data(), view.stride.size()), view.offset);
  if (view.requires_grad) tensor.set_requires_grad(true);
  PyObject* made = THPVariable_Wrap(std::move(tensor));
  if (made == nullptr) return nullptr;
#if PY_VERSION_HEX >= 0x030E0000
  // The tensor's attributes may lie within it. Only Python knows how to move them.
  if (PyObject_SetAttrString(made, "__class__", reinterpret_cast<PyObject*>(type)) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
#else
  // What `made.__class__ = type` does once it has compared the layouts, and ten times as fast.
  Py_INCREF(type);
  PyTypeObject* const before = Py_TYPE(made);
  Py_SET_TYPE(made, type);
  Py_DECREF(before);
#endif
  impl->set_python_dispatch(true);
  return made;
}

}  // namespace zerocopy
