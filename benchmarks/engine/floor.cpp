// The least that a loader can do: opens a file, maps it, reads where its records are, and makes the storages
// and tensors that it is given by offset and shape. It parses no pickle and no header, checks nothing, knows
// one dict of tensors, and leaks what a mistake leaves behind. No loader that returns such a dict can do
// less.
//
//   plan(storages, tensors) -> capsule     storages: (record in the directory or offset in the file, bytes)
//                                          tensors: (name, storage, dtype, shape, strides, offset in
//                                          elements)
//   load(path, capsule, is_zip) -> dict
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

namespace {

struct Storage {
  std::uint64_t place;
  std::uint64_t size;
};

struct Tensor {
  PyObject* name;
  std::size_t storage;
  c10::ScalarType type;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
};

struct Plan {
  std::vector<Storage> storages;
  std::vector<Tensor> tensors;
};

struct Mapping {
  void* base;
  std::size_t size;
  std::atomic<std::size_t> users;
};

void release(void* context) {
  auto* mapping = static_cast<Mapping*>(context);
  if (mapping->users.fetch_sub(1) > 1) return;
  ::munmap(mapping->base, mapping->size);
  delete mapping;
}

template <typename Number>
Number number_at(const char* bytes) {
  Number value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Of the local headers, by the directory; the end record with 64-bit numbers is where torch puts it.
std::vector<std::uint64_t> headers_of(int file, std::uint64_t size) {
  constexpr std::size_t kEnd = 22, kLocator = 20, kWideEnd = 56;
  char end[kWideEnd + kLocator + kEnd];
  if (::pread(file, end, sizeof end, static_cast<off_t>(size - sizeof end)) != sizeof end) return {};
  const auto count = number_at<std::uint64_t>(end + 32);
  const auto length = number_at<std::uint64_t>(end + 40);
  std::vector<char> directory(length);
  const auto at = number_at<std::uint64_t>(end + 48);
  if (::pread(file, directory.data(), length, static_cast<off_t>(at)) != static_cast<ssize_t>(length))
    return {};
  std::vector<std::uint64_t> headers;
  headers.reserve(count);
  const char* entry = directory.data();
  for (std::uint64_t i = 0; i < count; ++i) {
    headers.push_back(number_at<std::uint32_t>(entry + 42));
    entry += 46 + number_at<std::uint16_t>(entry + 28) + number_at<std::uint16_t>(entry + 30) +
             number_at<std::uint16_t>(entry + 32);
  }
  return headers;
}

std::uint64_t data_behind(int file, std::uint64_t header) {
  char local[30];
  if (::pread(file, local, sizeof local, static_cast<off_t>(header)) != sizeof local) return 0;
  return header + sizeof local + number_at<std::uint16_t>(local + 26) + number_at<std::uint16_t>(local + 28);
}

// The names and shapes of a .safetensors file are read, and not looked at.
void read_header(int file) {
  std::uint64_t length = 0;
  if (::pread(file, &length, sizeof length, 0) != sizeof length) return;
  std::vector<char> header(length);
  if (::pread(file, header.data(), length, sizeof length) < 0) return;
}

std::vector<std::int64_t> numbers_of(PyObject* sequence) {
  std::vector<std::int64_t> numbers;
  for (Py_ssize_t i = 0; i < PySequence_Size(sequence); ++i) {
    PyObject* item = PySequence_GetItem(sequence, i);
    numbers.push_back(PyLong_AsLongLong(item));
    Py_DECREF(item);
  }
  return numbers;
}

PyObject* make_plan(PyObject*, PyObject* arguments) {
  PyObject* storages = nullptr;
  PyObject* tensors = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &storages, &PyList_Type, &tensors)) return nullptr;
  auto* plan = new Plan;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(storages); ++i) {
    unsigned long long place = 0, size = 0;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(storages, i), "KK", &place, &size)) return nullptr;
    plan->storages.push_back({place, size});
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject *name = nullptr, *type = nullptr, *sizes = nullptr, *strides = nullptr;
    Py_ssize_t storage = 0;
    long long offset = 0;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(tensors, i), "OnOOOL", &name, &storage, &type, &sizes, &strides,
                          &offset)) {
      return nullptr;
    }
    Py_INCREF(name);
    plan->tensors.push_back({name, static_cast<std::size_t>(storage),
                             reinterpret_cast<THPDtype*>(type)->scalar_type, numbers_of(sizes),
                             numbers_of(strides), offset});
  }
  return PyCapsule_New(plan, nullptr, nullptr);  // one for each file: never freed
}

std::vector<c10::Storage> storages_of(const Plan& plan, const char* path, bool is_zip) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) return {};
  const auto size = static_cast<std::size_t>(status.st_size);
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);
  const auto headers = is_zip ? headers_of(file, size) : std::vector<std::uint64_t>();
  if (!is_zip) read_header(file);
  auto* mapping = new Mapping{base, size, {plan.storages.size()}};
  std::vector<c10::Storage> storages;
  storages.reserve(plan.storages.size());
  for (const Storage& storage : plan.storages) {
    const std::uint64_t at = is_zip ? data_behind(file, headers[storage.place]) : storage.place;
    storages.emplace_back(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(storage.size),
        c10::DataPtr(static_cast<char*>(base) + at, mapping, &release, c10::DeviceType::CPU), nullptr,
        false));
  }
  ::close(file);
  return storages;
}

PyObject* load(PyObject*, PyObject* arguments) {
  const char* path = nullptr;
  PyObject* capsule = nullptr;
  int is_zip = 0;
  if (!PyArg_ParseTuple(arguments, "sOp", &path, &capsule, &is_zip)) return nullptr;
  const auto& plan = *static_cast<const Plan*>(PyCapsule_GetPointer(capsule, nullptr));
  const auto storages = storages_of(plan, path, is_zip != 0);
  if (storages.size() != plan.storages.size()) return PyErr_SetFromErrno(PyExc_OSError);
  PyObject* made = PyDict_New();
  for (const Tensor& tensor : plan.tensors) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storages[tensor.storage]),
                                                     c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                     c10::scalarTypeToTypeMeta(tensor.type));
    impl->set_storage_offset(tensor.offset);
    impl->set_sizes_and_strides(tensor.sizes, tensor.strides);
    PyObject* wrapped = THPVariable_Wrap(at::Tensor(std::move(impl)));
    PyDict_SetItem(made, tensor.name, wrapped);
    Py_DECREF(wrapped);
  }
  return made;
}

PyMethodDef methods[] = {{"plan", make_plan, METH_VARARGS, nullptr},
                         {"load", load, METH_VARARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "floor_of_loaders", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_floor_of_loaders() { return PyModule_Create(&definition); }
