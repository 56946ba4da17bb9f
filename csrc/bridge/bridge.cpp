// Fills the table of table.h with the C++ classes of one release of torch. The same source compiles
// from 1.13 to 2.15.
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "bridge/table.h"

#define ZEROCOPY_TEXT_OF(number) #number
#define ZEROCOPY_TEXT(number) ZEROCOPY_TEXT_OF(number)

namespace {

using Impl = c10::intrusive_ptr<c10::StorageImpl>;
using WeakImpl = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Python reads this text before it loads the file: zerocopy/_native/stamp.py.
constexpr char kStamp[] = "zerocopy-bridge-stamp: abi=" ZEROCOPY_TEXT(ZEROCOPY_BRIDGE_ABI)  //
    " torch=" ZEROCOPY_BRIDGE_TORCH " cxx11abi=" ZEROCOPY_TEXT(_GLIBCXX_USE_CXX11_ABI)      //
    " python=" ZEROCOPY_BRIDGE_PYTHON ";";

ZerocopyBridgeHost host;

c10::StorageImpl* impl_of(void* storage) { return static_cast<c10::StorageImpl*>(storage); }

const c10::DataPtr& data_of(void* storage) {
  return static_cast<const c10::StorageImpl*>(storage)->data_ptr();
}

c10::Storage share(void* storage) { return c10::Storage(Impl::reclaim_copy(impl_of(storage))); }

c10::ScalarType type_of(std::int32_t dtype) { return static_cast<c10::ScalarType>(dtype); }

c10::DispatchKeySet keys_of(c10::Device device) {
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

// torch may have set a Python exception before it threw its own.
void set_error(const char* message) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, message);
}

// Turns C++ exceptions into Python's, since none may leave the table.
template <typename Make>
auto guarded(Make make) noexcept -> decltype(make()) {
  try {
    return make();
  } catch (const c10::Error& error) {
    set_error(error.what_without_backtrace());
  } catch (const std::exception& error) {
    set_error(error.what());
  }
  return nullptr;
}

// A tensor without a storage. torch's own class would return null to what asks for it, which crashes.
class Placeholder final : public c10::TensorImpl {
 public:
  explicit Placeholder(c10::ScalarType dtype)
      : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype),
                   c10::Device(c10::DeviceType::CPU)) {
    set_storage_access_should_throw();
  }

 private:
  const char* tensorimpl_type_name() const override {
    return "a lazy tensor that is not loaded: use materialize()";
  }
};

// Makes a storage that cannot be resized, like those of torch.load. Storage.new() asks for the
// allocator, and crashes where there is none.
void* made(c10::DataPtr data, std::uint64_t size) {
  c10::Allocator* allocator = data.device().is_cpu() ? c10::GetCPUAllocator() : nullptr;
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                    static_cast<std::int64_t>(size), std::move(data),
                                                    allocator, /*resizable=*/false);
  return impl.release();
}

int is_dtype(PyObject* object) { return THPDtype_Check(object) ? 1 : 0; }

std::int32_t scalar_type(PyObject* dtype) {
  return static_cast<std::int32_t>(reinterpret_cast<const THPDtype*>(dtype)->scalar_type);
}

std::int64_t item_size(std::int32_t dtype) {
  return static_cast<std::int64_t>(c10::elementSize(type_of(dtype)));
}

int is_complex(std::int32_t dtype) { return c10::isComplexType(type_of(dtype)) ? 1 : 0; }

int is_floating_point(std::int32_t dtype) { return c10::isFloatingType(type_of(dtype)) ? 1 : 0; }

void* storage_over(void* data, std::uint64_t size, void* owner) {
  return guarded([&] {
    // torch refuses to read tensors without an address, such as one whose resizing has failed.
    void* const begin = size == 0 ? nullptr : data;
    return made(c10::DataPtr(begin, owner, host.release_owner, c10::DeviceType::CPU), size);
  });
}

void release_impl(void* storage) { Impl::reclaim(impl_of(storage)); }

void* storage_within(void* storage, std::uint64_t offset, std::uint64_t size) {
  return guarded([&] {
    const c10::DataPtr& data = data_of(storage);
    void* const begin = size == 0 ? nullptr : static_cast<std::byte*>(data.get()) + offset;
    void* const whole = Impl::reclaim_copy(impl_of(storage)).release();
    return made(c10::DataPtr(begin, whole, &release_impl, data.device()), size);
  });
}

void* storage_kept(void* storage, void* owner) {
  return guarded([&] {
    const c10::DataPtr& data = data_of(storage);
    return made(c10::DataPtr(data.get(), owner, host.release_owner, data.device()),
                impl_of(storage)->nbytes());
  });
}

void* storage_of(PyObject* storage) {
  return guarded([&]() -> void* {
    if (!torch::isStorage(storage)) {
      PyErr_Format(PyExc_ValueError, "expected a torch storage, found %s", Py_TYPE(storage)->tp_name);
      return nullptr;
    }
    return torch::createStorage(storage).unsafeReleaseStorageImpl();
  });
}

std::uint64_t storage_nbytes(void* storage) { return impl_of(storage)->nbytes(); }

void* storage_data(void* storage) { return data_of(storage).get(); }

int storage_is_cpu(void* storage) { return impl_of(storage)->device().is_cpu() ? 1 : 0; }

void* storage_owner(void* storage) {
  const c10::DataPtr& data = data_of(storage);
  if (data.get_deleter() != host.release_owner) return nullptr;
  host.retain_owner(data.get_context());
  return data.get_context();
}

PyObject* wrap(void* storage) {
  return guarded([&] { return torch::createPyObject(share(storage)); });
}

void set_geometry(c10::TensorImpl& tensor, const ZerocopyTensorView& view) {
  tensor.set_sizes_and_strides(c10::IntArrayRef(view.size, view.dimensions),
                               c10::IntArrayRef(view.stride, view.dimensions), view.offset);
}

PyObject* tensor(void* storage, const ZerocopyTensorView* view) {
  return guarded([&] {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        share(storage), keys_of(impl_of(storage)->device()), c10::scalarTypeToTypeMeta(type_of(view->dtype)));
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    set_geometry(*impl, *view);
    if (view->conjugate != 0) impl->_set_conj(true);
    if (view->negative != 0) impl->_set_neg(true);
    if (view->requires_grad != 0) tensor.set_requires_grad(true);
    return THPVariable_Wrap(std::move(tensor));
  });
}

void* weak_of(void* storage) {
  const auto shared = Impl::reclaim_copy(impl_of(storage));
  return WeakImpl(shared).release();
}

void weak_release(void* weak) { WeakImpl::reclaim(impl_of(weak)); }

void* weak_lock(void* weak) {
  WeakImpl known = WeakImpl::reclaim(impl_of(weak));
  void* const locked = known.lock().release();
  known.release();  // the caller keeps its weak reference
  return locked;
}

PyObject* placeholder(const ZerocopyTensorView* view, PyTypeObject* type) {
  return guarded([&]() -> PyObject* {
    auto tensor = at::detail::make_tensor<Placeholder>(type_of(view->dtype));
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    set_geometry(*impl, *view);
    if (view->requires_grad != 0) tensor.set_requires_grad(true);
    PyObject* object = THPVariable_Wrap(std::move(tensor));
    if (object == nullptr) return nullptr;
#if PY_VERSION_HEX >= 0x030E0000
    // The tensor's attributes may be stored inside it, and only Python can move them.
    if (PyObject_SetAttrString(object, "__class__", reinterpret_cast<PyObject*>(type)) != 0) {
      Py_DECREF(object);
      return nullptr;
    }
#else
    // `object.__class__ = type` does the same after comparing the layouts, and takes ten times as
    // long.
    Py_INCREF(type);
    PyTypeObject* const before = Py_TYPE(object);
    Py_SET_TYPE(object, type);
    Py_DECREF(before);
#endif
    impl->set_python_dispatch(true);
    return object;
  });
}

constexpr ZerocopyBridge kBridge{
    .abi = ZEROCOPY_BRIDGE_ABI,
    .size = sizeof(ZerocopyBridge),
    .stamp = kStamp,
    .is_dtype = &is_dtype,
    .scalar_type = &scalar_type,
    .item_size = &item_size,
    .is_complex = &is_complex,
    .is_floating_point = &is_floating_point,
    .storage_over = &storage_over,
    .storage_within = &storage_within,
    .storage_kept = &storage_kept,
    .storage_of = &storage_of,
    .storage_release = &release_impl,
    .storage_nbytes = &storage_nbytes,
    .storage_data = &storage_data,
    .storage_is_cpu = &storage_is_cpu,
    .storage_owner = &storage_owner,
    .wrap = &wrap,
    .tensor = &tensor,
    .weak_of = &weak_of,
    .weak_release = &weak_release,
    .weak_lock = &weak_lock,
    .placeholder = &placeholder,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ZerocopyBridge* zerocopy_bridge(
    const ZerocopyBridgeHost* caller) {
  if (caller->abi != ZEROCOPY_BRIDGE_ABI) return nullptr;
  host = *caller;
  return &kBridge;
}
