#include "python/planned_save.h"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>

#include "container/planned_archive.h"
#include "io/copied_process.h"
#include "python/buffer.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

template <typename Item>
std::vector<Item> items_of(const py::object& buffer) {
  const Region region = region_of_buffer(buffer.ptr(), Access::any);
  const ByteSpan bytes = region.bytes();
  if (bytes.size() % sizeof(Item) != 0)
    throw FormatError("save plan: its size is not a multiple of the item size");
  std::vector<Item> items(bytes.size() / sizeof(Item));
  if (!items.empty()) std::memcpy(items.data(), bytes.data(), bytes.size());
  return items;
}

// A file that a plan writes. It does not own the descriptors.
class PlannedSave {
 public:
  PlannedSave(const std::tuple<py::object, py::object, py::object, py::object>& plan, int descriptor,
              std::tuple<std::string, std::string, std::string, bool> names, std::vector<int> earlier,
              const py::object& report)
      : archive_(items_of<Step>(std::get<0>(plan)), items_of<std::byte>(std::get<1>(plan)),
                 items_of<std::byte>(std::get<2>(plan)), items_of<ChecksumReference>(std::get<3>(plan))),
        descriptor_(descriptor),
        names_(std::move(names)),
        earlier_(std::move(earlier)),
        report_(region_of_buffer(report.ptr(), Access::writable)) {
    if (report_.size() < sizeof(SaveReport)) throw FormatError("save plan: the report buffer is too small");
    // NOLINTNEXTLINE(*-reinterpret-cast): its address alone
    if (reinterpret_cast<std::uintptr_t>(report_.data()) % alignof(SaveReport) != 0) {
      throw FormatError("save plan: the report buffer is not aligned");
    }
  }

  // Begins to write in a copy of this process, and keeps its number: an exception of a signal
  // handler can end the caller before it has the result.
  void begin_in_copy() {
    std::vector<int> kept = archive_.sources();
    kept.push_back(descriptor_);
    kept.insert(kept.end(), earlier_.begin(), earlier_.end());
    process_ = run_in_copy(
        [](void* save) noexcept { return static_cast<PlannedSave*>(save)->write() ? 0 : 1; }, this, kept);
  }

  std::optional<pid_t> process() const noexcept { return process_; }

  void run() {
    const GilReleased released;
    write();
  }

 private:
  bool write() noexcept {
    const auto& [target, folder, temporary, is_named] = names_;
    const FileNaming naming{.target = target.c_str(),
                            .folder = folder.c_str(),
                            .temporary = temporary.c_str(),
                            .is_named = is_named,
                            .earlier = earlier_};
    // NOLINTNEXTLINE(*-reinterpret-cast): Python reads its fields
    return archive_.write(NewFile(descriptor_), naming, *reinterpret_cast<SaveReport*>(report_.data()));
  }

  PlannedArchive archive_;
  int descriptor_;
  std::tuple<std::string, std::string, std::string, bool> names_;
  std::vector<int> earlier_;
  Region report_;
  std::optional<pid_t> process_;
};

}  // namespace

void register_planned_save(py::module_& module) {
  using Plan = std::tuple<py::object, py::object, py::object, py::object>;
  using Names = std::tuple<std::string, std::string, std::string, bool>;
  py::class_<PlannedSave>(module, "PlannedSave")
      .def(py::init<const Plan&, int, Names, std::vector<int>, const py::object&>(), py::arg("plan"),
           py::arg("descriptor"), py::arg("names"), py::arg("earlier"), py::arg("report"))
      .def("begin_in_copy", &PlannedSave::begin_in_copy)
      .def_property_readonly("process", &PlannedSave::process)
      .def("run", &PlannedSave::run);
}

}  // namespace zerocopy
