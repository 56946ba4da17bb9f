#include "binding/gds.h"

#include <pybind11/stl.h>

#include <optional>

#include "binding/torch_bridge.h"
#include "gds/registered_file.h"
#include "python/file_name.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

DeviceMemory memory_of(const TorchStorage& storage) { return {storage.address(), storage.nbytes()}; }

DeviceMemory part_of(const TorchStorage& storage, Extent part) {
  if (!part.fits(storage.nbytes())) {
    throw py::value_error("the storage has " + std::to_string(storage.nbytes()) + " bytes, not " +
                          std::to_string(part.size) + " at " + std::to_string(part.offset));
  }
  return memory_of(storage).from(part.offset).first(part.size);
}

std::shared_ptr<Driver> open_driver(const std::vector<std::string>& cuda,
                                    const std::vector<std::string>& cufile,
                                    const std::string& kernel_driver) {
  const GilReleased released;
  return Driver::open(Library::open(cuda, cufile), kernel_driver);
}

py::dict properties_of(const Driver& driver) {
  const abi::Properties& told = driver.properties();
  return py::dict(py::arg("nvfs") = py::make_tuple(told.nvfs.major, told.nvfs.minor),
                  py::arg("status") = told.nvfs.status,
                  py::arg("compatibility") = (told.nvfs.control & abi::kAllowsCompatibility) != 0,
                  py::arg("peer_to_peer") = (told.features & abi::kPeerToPeer) != 0 ||
                                            (told.nvfs.status & abi::kNvmePeerToPeer) != 0);
}

void register_buffer(Driver& driver, const py::object& storage) {
  const TorchStorage native = TorchStorage::of(storage.ptr());
  const GilReleased released;
  driver.register_buffer(memory_of(native));
}

void deregister_buffer(Driver& driver, const py::object& storage) {
  const TorchStorage native = TorchStorage::of(storage.ptr());
  const GilReleased released;
  driver.deregister_buffer(memory_of(native));
}

std::shared_ptr<RegisteredFile> open_file(const std::shared_ptr<Driver>& driver, int descriptor,
                                          const FileName& name) {
  const GilReleased released;
  return RegisteredFile::open(driver, descriptor, name.bytes);
}

void move(const RegisteredFile& file, const py::object& storage, std::uint64_t offset, bool write) {
  const TorchStorage native = TorchStorage::of(storage.ptr());
  const GilReleased released;
  const RegisteredFile::Piece piece{offset, memory_of(native)};
  write ? file.write(piece) : file.read(piece);
}

// The offset in the file, the storage, and the offset and size within the storage.
using Part = std::tuple<std::uint64_t, py::object, std::uint64_t, std::uint64_t>;

void read_all(const RegisteredFile& file, const std::vector<Part>& parts) {
  std::vector<TorchStorage> storages;
  std::vector<RegisteredFile::Piece> pieces;
  for (const auto& [offset, storage, begin, size] : parts) {
    storages.push_back(TorchStorage::of(storage.ptr()));
    pieces.push_back({offset, part_of(storages.back(), {begin, size})});
  }
  const GilReleased released;
  file.read_all(pieces);
}

// A read in a stream, and the storage that it fills.
class StreamRead {
 public:
  StreamRead(std::shared_ptr<const RegisteredFile> file, TorchStorage storage, std::uint64_t offset,
             abi::Stream stream)
      : storage_(std::move(storage)) {
    const GilReleased released;
    pending_.emplace(std::move(file), RegisteredFile::Piece{offset, memory_of(storage_)}, stream);
  }
  StreamRead(const StreamRead&) = delete;
  StreamRead& operator=(const StreamRead&) = delete;
  ~StreamRead() {
    const GilReleased released;
    pending_.reset();
  }

  void wait() {
    const GilReleased released;
    pending_->wait();
  }

 private:
  TorchStorage storage_;
  std::optional<RegisteredFile::Pending> pending_;
};

std::unique_ptr<StreamRead> begin_read(const std::shared_ptr<RegisteredFile>& file, const py::object& storage,
                                       std::uint64_t offset, const py::object& stream) {
  abi::Stream native = nullptr;
  if (!stream.is_none()) {
    native = PyLong_AsVoidPtr(stream.attr("cuda_stream").ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  }
  return std::make_unique<StreamRead>(file, TorchStorage::of(storage.ptr()), offset, native);
}

}  // namespace

void register_gds(py::module_& module) {
  py::class_<Driver, std::shared_ptr<Driver>>(module, "GdsDriver")
      .def_static("open", &open_driver, py::arg("cuda"), py::arg("cufile"), py::arg("kernel_driver"))
      .def_property_readonly("path", &Driver::path)
      .def_property_readonly("version", &Driver::version)
      .def_property_readonly("properties", &properties_of)
      .def_property_readonly("has_batches", &Driver::has_batches)
      .def_property_readonly("has_streams", &Driver::has_streams)
      .def_property_readonly("registered", &Driver::registered)
      .def("register_buffer", &register_buffer, py::arg("storage"))
      .def("deregister_buffer", &deregister_buffer, py::arg("storage"));

  py::class_<RegisteredFile, std::shared_ptr<RegisteredFile>>(module, "GdsFile")
      .def_static("open", &open_file, py::arg("driver"), py::arg("descriptor"), py::arg("name"))
      .def(
          "read",
          [](const RegisteredFile& self, const py::object& storage, std::uint64_t offset) {
            move(self, storage, offset, false);
          },
          py::arg("storage"), py::arg("offset"))
      .def(
          "write",
          [](const RegisteredFile& self, const py::object& storage, std::uint64_t offset) {
            move(self, storage, offset, true);
          },
          py::arg("storage"), py::arg("offset"))
      .def("read_all", &read_all, py::arg("parts"))
      .def("begin_read", &begin_read, py::arg("storage"), py::arg("offset"), py::arg("stream"));

  py::class_<StreamRead>(module, "GdsRead").def("wait", &StreamRead::wait);
}

}  // namespace zerocopy
