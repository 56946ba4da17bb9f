#include "binding/transfer_plan.h"

#include <pybind11/stl.h>

#include "python/python.h"
#include "python/transfer_options.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

class HeldStorage final : public Owner {
 public:
  explicit HeldStorage(TorchStorage storage) : storage_(std::move(storage)) {}

 private:
  TorchStorage storage_;
};

std::unique_ptr<const Source> source_over(const py::object& untyped_storage) {
  TorchStorage storage = TorchStorage::of(untyped_storage.ptr());
  if (!storage.is_cpu()) throw py::value_error("expected a CPU storage");
  const ByteSpan bytes = storage.bytes();
  // NOLINTNEXTLINE(*-const-cast): Regions are writable, but a source only reads
  auto* const data = const_cast<std::byte*>(bytes.data());
  return std::make_unique<const MemorySource>(
      Region(data, bytes.size(), OwnerRef(new HeldStorage(std::move(storage)))));
}

std::shared_ptr<TransferPlan> transfer_plan_of(const std::vector<py::object>& storages) {
  std::vector<std::unique_ptr<const Source>> sources;
  for (const py::object& storage : storages) sources.push_back(source_over(storage));
  return TransferPlan::of(std::move(sources));
}

py::list storages_of(const TransferPlan& plan, const py::object& whole) {
  py::list made(plan.staging().device_offsets.size());
  for (std::size_t i = 0; i < plan.staging().device_offsets.size(); ++i) {
    made[i] = steal(plan.copied_storage(whole, i).wrap());
  }
  return made;
}

}  // namespace

TransferPlan::TransferPlan(std::vector<StagedStorage> staged_storages,
                           std::vector<std::unique_ptr<const Source>> sources)
    : staged_storages_(std::move(staged_storages)),
      sources_(std::move(sources)),
      staging_(plan_staging(staged_storages_)) {}

std::shared_ptr<TransferPlan> TransferPlan::of(std::vector<std::unique_ptr<const Source>> sources) {
  std::vector<StagedStorage> staged_storages;
  for (const auto& source : sources) staged_storages.push_back({source.get(), {0, source->size()}});
  return std::make_shared<TransferPlan>(std::move(staged_storages), std::move(sources));
}

TransferPlan::~TransferPlan() {
  if (reader_) stop();
}

py::list TransferPlan::copies(std::size_t chunk) const {
  py::list found;
  for (const DeviceCopy& copy : staging_.chunks.at(chunk).copies) {
    found.append(py::make_tuple(copy.from, copy.to, copy.size));
  }
  return found;
}

void TransferPlan::start(unsigned threads) { reader_.emplace(staging_.chunks, transfer_options(threads)); }

SlotReader& TransferPlan::reader() {
  if (!reader_) throw py::value_error("not started: call start() first");
  return *reader_;
}

void TransferPlan::lend(const py::object& storage, std::uint64_t offset) {
  const TorchStorage slot = TorchStorage::of(storage.ptr());
  if (!slot.is_cpu()) throw py::value_error("expected a CPU storage");
  const ByteSpan bytes = slot.bytes().subspan({offset, staging_.slot_size});
  // NOLINTNEXTLINE(*-const-cast): slots are lent for writing
  reader().lend(const_cast<std::byte*>(bytes.data()));
}

void TransferPlan::wait(std::size_t chunk) {
  SlotReader& reader = this->reader();
  const GilReleased released;
  reader.wait(chunk);
}

// Releases the GIL, since the threads may need it to read through Python.
void TransferPlan::stop() {
  const GilReleased released;
  reader_.reset();
}

TorchStorage TransferPlan::copied_storage(const py::object& whole, std::size_t i) const {
  return TorchStorage::within(whole.ptr(),
                              {staging_.device_offsets.at(i), staged_storages_.at(i).extent.size});
}

void register_transfer_plan(py::module_& module) {
  py::class_<TransferPlan, std::shared_ptr<TransferPlan>>(module, "TransferPlan")
      .def(py::init(&transfer_plan_of), py::arg("storages"))
      .def_property_readonly("size", [](const TransferPlan& self) { return self.staging().size; })
      .def_property_readonly("slot", [](const TransferPlan& self) { return self.staging().slot_size; })
      .def_property_readonly("chunks", [](const TransferPlan& self) { return self.staging().chunks.size(); })
      .def("copies", &TransferPlan::copies, py::arg("chunk"))
      .def("start", &TransferPlan::start, py::arg("threads"))
      .def("lend", &TransferPlan::lend, py::arg("storage"), py::arg("offset"))
      .def("wait", &TransferPlan::wait, py::arg("chunk"))
      .def("stop", &TransferPlan::stop)
      .def("storages", &storages_of, py::arg("whole"));
}

}  // namespace zerocopy
