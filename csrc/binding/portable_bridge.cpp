#include "binding/portable_bridge.h"

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "binding/lent_bytes.h"
#include "python/gil.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

ZerocopyBridgeHost host;

// The functions of zerocopy._torch.portable. Never released, since storages may outlive the
// interpreter's clean-up.
struct Functions {
  Functions()
      : dtype(named("dtype")),
        dtype_facts(named("dtype_facts")),
        storage_facts(named("storage_facts")),
        untyped_of_any(named("untyped_of_any")),
        storage_of_dlpack(named("storage_of_dlpack")),
        dlpack_device(named("dlpack_device")),
        tensor(named("tensor")),
        with_flags(named("with_flags")),
        placeholder(named("placeholder")),
        weak_reference(named("weak_reference")),
        release_weak_reference(named("release_weak_reference")),
        storage_of_weak_reference(named("storage_of_weak_reference")) {}

  const py::handle dtype;
  const py::handle dtype_facts;
  const py::handle storage_facts;
  const py::handle untyped_of_any;
  const py::handle storage_of_dlpack;
  const py::handle dlpack_device;
  const py::handle tensor;
  const py::handle with_flags;
  const py::handle placeholder;
  const py::handle weak_reference;
  const py::handle release_weak_reference;
  const py::handle storage_of_weak_reference;

 private:
  static py::handle named(const char* name) {
    return py::object(py::module_::import("zerocopy._torch.portable").attr(name)).release();
  }
};

// Not a function-local static: an import lets other threads run, and these would wait for the
// static while holding the GIL.
const Functions& functions() {
  static const Functions* known = nullptr;
  if (known == nullptr) {
    const auto* made = new Functions();
    if (known == nullptr) known = made;
  }
  return *known;
}

// Turns C++ exceptions into Python's, since none may leave the table.
template <typename Make>
auto guarded(Make make) noexcept -> decltype(make()) {
  try {
    return make();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return {};
}

// ------------------------------------------------------------------------------------- dtypes

struct KnownDtype {
  PyObject* object;
  std::int64_t item_size;
  bool complex;
  bool floating_point;
};

// A dtype's number is its index here. Callers hold the GIL, and dtypes live as long as torch.
std::vector<KnownDtype>& dtypes() {
  static auto* const known = new std::vector<KnownDtype>();
  return *known;
}

const KnownDtype& dtype_at(std::int32_t dtype) { return dtypes()[static_cast<std::size_t>(dtype)]; }

int is_dtype(PyObject* object) {
  return functions().dtype.ptr() == reinterpret_cast<PyObject*>(Py_TYPE(object)) ? 1 : 0;
}

std::int32_t scalar_type(PyObject* dtype) {
  std::vector<KnownDtype>& known = dtypes();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i].object == dtype) return static_cast<std::int32_t>(i);
  }
  const auto [item_size, complex, floating] =
      functions().dtype_facts(py::handle(dtype)).cast<std::tuple<std::int64_t, bool, bool>>();
  Py_INCREF(dtype);
  known.push_back({dtype, item_size, complex, floating});
  return static_cast<std::int32_t>(known.size() - 1);
}

std::int64_t item_size(std::int32_t dtype) { return dtype_at(dtype).item_size; }
int is_complex(std::int32_t dtype) { return dtype_at(dtype).complex ? 1 : 0; }
int is_floating_point(std::int32_t dtype) { return dtype_at(dtype).floating_point ? 1 : 0; }

// ------------------------------------------------------------------------------------- storages

// The facts are read once, since callers use them without the GIL.
struct Handle {
  PyObject* storage;
  void* data;
  std::uint64_t nbytes;
  bool is_cpu;
};

Handle& handle_of(void* storage) { return *static_cast<Handle*>(storage); }

// Takes over the reference.
Handle* with_facts(py::object storage) {
  const auto [address, nbytes, is_cpu] =
      functions().storage_facts(storage).cast<std::tuple<std::uintptr_t, std::uint64_t, bool>>();
  // NOLINTNEXTLINE(*-reinterpret-cast, performance-no-int-to-ptr): torch gives addresses to Python as numbers
  auto* const data = reinterpret_cast<void*>(address);
  return new Handle{storage.release().ptr(), data, nbytes, is_cpu};
}

// torch renames a capsule after taking over its bytes.
void drop_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsule) == 0) return;
  auto* const managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, dlpack::kCapsule));
  managed->deleter(managed);
}

Handle* lend(void* data, std::uint64_t size, dlpack::Device device, void* owner) {
  // torch drops the deleter of empty bytes at address null, so they get another address.
  static std::byte nowhere{};
  if (data == nullptr) data = &nowhere;
  auto lent = std::make_unique<LentBytes>(data, size, device, owner, host);
  const py::object capsule = steal(PyCapsule_New(lent->managed(), dlpack::kCapsule, &drop_capsule));
  lent.release();
  py::object storage = functions().storage_of_dlpack(capsule);
  return new Handle{storage.release().ptr(), data, size, device.type == dlpack::kCpu};
}

void* storage_over(void* data, std::uint64_t size, void* owner) {
  return guarded([&] { return lend(data, size, {dlpack::kCpu, 0}, owner); });
}

void* storage_within(void* storage, std::uint64_t offset, std::uint64_t size) {
  return guarded([&]() -> Handle* {
    const py::slice bytes(static_cast<py::ssize_t>(offset), static_cast<py::ssize_t>(offset + size), 1);
    return with_facts(py::handle(handle_of(storage).storage)[bytes]);
  });
}

void* storage_kept(void* storage, void* owner) {
  return guarded([&] {
    const Handle& whole = handle_of(storage);
    dlpack::Device device{dlpack::kCpu, 0};
    if (!whole.is_cpu) {
      try {
        const auto [type, index] = functions()
                                       .dlpack_device(py::handle(whole.storage))
                                       .cast<std::tuple<std::int32_t, std::int32_t>>();
        device = {type, index};
      } catch (...) {
        host.release_owner(owner);
        throw;
      }
    }
    return lend(whole.data, whole.nbytes, device, owner);
  });
}

void* storage_of(PyObject* storage) {
  return guarded([&] { return with_facts(functions().untyped_of_any(py::handle(storage))); });
}

void drop(PyObject* object) {
  release_with_gil([object] { Py_DECREF(object); });
}

void storage_release(void* storage) {
  const std::unique_ptr<Handle> handle(&handle_of(storage));
  drop(handle->storage);
}

std::uint64_t storage_nbytes(void* storage) { return handle_of(storage).nbytes; }
void* storage_data(void* storage) { return handle_of(storage).data; }
int storage_is_cpu(void* storage) { return handle_of(storage).is_cpu ? 1 : 0; }
void* storage_owner(void* storage) { return owner_of_lent_bytes(handle_of(storage).data, host); }

PyObject* wrap(void* storage) {
  PyObject* const object = handle_of(storage).storage;
  Py_INCREF(object);
  return object;
}

// ------------------------------------------------------------------------------------- tensors

py::object tuple_of(const std::int64_t* numbers, std::size_t count) {
  py::object made = steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i),
                     steal(PyLong_FromLongLong(numbers[i])).release().ptr());
  }
  return made;
}

PyObject* tensor(void* storage, const ZerocopyTensorView* view) {
  return guarded([&] {
    const py::object size = tuple_of(view->size, view->dimensions);
    const py::object stride = tuple_of(view->stride, view->dimensions);
    py::object made =
        functions().tensor(py::handle(handle_of(storage).storage), py::handle(dtype_at(view->dtype).object),
                           view->offset, size, stride);
    if ((view->requires_grad | view->conjugate | view->negative) != 0) {
      made =
          functions().with_flags(made, view->requires_grad != 0, view->conjugate != 0, view->negative != 0);
    }
    return made.release().ptr();
  });
}

PyObject* placeholder(const ZerocopyTensorView* view, PyTypeObject* type) {
  return guarded([&] {
    return functions()
        .placeholder(py::handle(reinterpret_cast<PyObject*>(type)), tuple_of(view->size, view->dimensions),
                     tuple_of(view->stride, view->dimensions), view->offset,
                     py::handle(dtype_at(view->dtype).object), view->requires_grad != 0)
        .release()
        .ptr();
  });
}

// ------------------------------------------------------------------------------------- weak references

// A weak reference is torch's number for it, as a Python object.
void* weak_of(void* storage) {
  return guarded([&]() -> void* {
    return functions().weak_reference(py::handle(handle_of(storage).storage)).release().ptr();
  });
}

void weak_release(void* weak) {
  release_with_gil([weak] {
    const auto number = py::reinterpret_steal<py::object>(static_cast<PyObject*>(weak));
    try {
      functions().release_weak_reference(number);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(number);
    }
  });
}

void* weak_lock(void* weak) {
  void* const locked = guarded([&]() -> Handle* {
    py::object storage = functions().storage_of_weak_reference(py::handle(static_cast<PyObject*>(weak)));
    return storage.is_none() ? nullptr : with_facts(std::move(storage));
  });
  if (locked == nullptr) PyErr_Clear();
  return locked;
}

}  // namespace

const ZerocopyBridge* portable_bridge(const ZerocopyBridgeHost* caller) noexcept {
  host = *caller;
  static constexpr ZerocopyBridge kBridge{
      .abi = ZEROCOPY_BRIDGE_ABI,
      .size = sizeof(ZerocopyBridge),
      .stamp = "portable",
      .is_dtype = &is_dtype,
      .scalar_type = &scalar_type,
      .item_size = &item_size,
      .is_complex = &is_complex,
      .is_floating_point = &is_floating_point,
      .storage_over = &storage_over,
      .storage_within = &storage_within,
      .storage_kept = &storage_kept,
      .storage_of = &storage_of,
      .storage_release = &storage_release,
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
  return &kBridge;
}

}  // namespace zerocopy
