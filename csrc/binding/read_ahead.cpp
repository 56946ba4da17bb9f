#include "binding/read_ahead.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "binding/torch_bridge.h"
#include "io/maps.h"
#include "io/read_ahead.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr std::uint64_t kMaxGap = std::uint64_t{64} << 10U;

class BackgroundReading {
 public:
  BackgroundReading(std::vector<MappedPart> parts, unsigned threads, bool locks) {
    for (const MappedPart& part : parts) {
      advise(part.region.bytes(), Advice::huge);
      if (!locks) continue;
      lock(part.region.bytes(), part.name);
      locked_.push_back(part.region);
    }
    reading_ = ReadAhead::start(std::move(parts), threads);
  }

  std::uint64_t size() const { return reading_->size(); }
  std::uint64_t done() const { return reading_->done(); }
  bool cancelled() const { return reading_->cancelled(); }
  void cancel() { reading_->cancel(); }

  bool wait(unsigned milliseconds) const {
    const GilReleased released;
    return reading_->wait_for(std::chrono::milliseconds(milliseconds));
  }
  void rethrow() const { reading_->rethrow(); }

 private:
  std::shared_ptr<ReadAhead> reading_;
  std::vector<Region> locked_;  // unmapping would unlock them
};

std::unique_ptr<BackgroundReading> read_path(const py::bytes& path, unsigned threads, bool locks) {
  const std::string name = path;
  const GilReleased released;
  File file = File::open(name, File::Access::read);
  Region whole = map_file(file, 0, Mode::read_only);
  std::vector<MappedPart> parts;
  if (whole.size() > 0) parts.push_back({std::move(whole), 0, std::move(file), name});
  return std::make_unique<BackgroundReading>(std::move(parts), threads, locks);
}

// Merges neighbouring regions of one owner, with the gaps between them, which are mostly headers.
std::vector<Region> joined(std::vector<Region> regions) {
  std::ranges::sort(regions, {}, [](const Region& region) { return region.data(); });
  std::vector<Region> runs;
  for (Region& region : regions) {
    if (!runs.empty() && runs.back().owner() == region.owner()) {
      Region& run = runs.back();
      const auto end = static_cast<std::size_t>(region.data() - run.data()) + region.size();
      if (region.data() <= run.data() + run.size() + kMaxGap) {
        run = Region(run.data(), std::max(run.size(), end), run.owner());
        continue;
      }
    }
    runs.push_back(std::move(region));
  }
  return runs;
}

// Reads storages in mapped files. Other storages are in memory already.
std::unique_ptr<BackgroundReading> read_storages(const std::vector<py::object>& storages, unsigned threads,
                                                 bool locks) {
  std::vector<Region> regions;
  for (const py::object& storage : storages) {
    if (Region region = TorchStorage::of(storage.ptr()).region(); region.size() > 0) {
      regions.push_back(std::move(region));
    }
  }
  const GilReleased released;
  const std::vector<FileMapping> mappings = file_mappings();
  std::vector<MappedPart> parts;
  for (Region& run : joined(std::move(regions))) {
    const FileMapping* mapping = mapping_of(mappings, run.bytes());
    if (mapping == nullptr) continue;
    // NOLINTNEXTLINE(*-reinterpret-cast): the address's offset in the mapping
    const std::uint64_t inside = reinterpret_cast<std::uintptr_t>(run.data()) - mapping->begin;
    parts.push_back({std::move(run), mapping->offset + inside, file_of(*mapping), mapping->path});
  }
  return std::make_unique<BackgroundReading>(std::move(parts), threads, locks);
}

}  // namespace

void register_read_ahead(py::module_& module) {
  py::class_<BackgroundReading>(module, "BackgroundReading")
      .def_property_readonly("size", &BackgroundReading::size)
      .def_property_readonly("done", &BackgroundReading::done)
      .def_property_readonly("cancelled", &BackgroundReading::cancelled)
      .def("cancel", &BackgroundReading::cancel)
      .def("wait", &BackgroundReading::wait, py::arg("milliseconds"))
      .def("rethrow", &BackgroundReading::rethrow);
  module.def("read_path_ahead", &read_path, py::arg("path"), py::arg("threads"), py::arg("lock"));
  module.def("read_storages_ahead", &read_storages, py::arg("storages"), py::arg("threads"), py::arg("lock"));
}

}  // namespace zerocopy
