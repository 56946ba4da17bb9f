#include "python/listing.h"

#include <pybind11/stl.h>

#include <tuple>

#include "checkpoint/hdf5_archive.h"
#include "python/buffer.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// A dataset that h5py reads. The archive may release it without the GIL.
class ReadByPython final : public ExternalBytes {
 public:
  ReadByPython(py::function call, std::string why) : ExternalBytes(std::move(why)), call_(std::move(call)) {}
  ReadByPython(const ReadByPython&) = delete;
  ReadByPython& operator=(const ReadByPython&) = delete;
  ~ReadByPython() override {
    release_with_gil([this] { call_.release().dec_ref(); });
  }

  Region read() const override {
    const GilTaken gil;
    return region_of_buffer(call_().ptr(), Access::writable);
  }

  std::optional<Region> read_view(const StridedView& view) const override {
    const GilTaken gil;
    const auto tuple = [](std::span<const std::int64_t> numbers) {
      return py::tuple(py::cast(std::vector<std::int64_t>(numbers.begin(), numbers.end())));
    };
    const py::object read = call_.attr("part")(view.offset, tuple(view.size), tuple(view.stride));
    if (read.is_none()) return std::nullopt;
    return region_of_buffer(read.ptr(), Access::writable);
  }

 private:
  py::function call_;
};

using Entry = std::tuple<std::string, std::optional<std::string>, std::vector<std::int64_t>,
                         std::optional<std::uint64_t>, std::optional<py::function>, std::string, std::string,
                         std::optional<std::size_t>>;

Hdf5Entry entry_of(Entry entry) {
  auto& [path, dtype, shape, offset, read, why, refusal, same_as] = entry;
  Hdf5Entry made{.path = std::move(path),
                 .is_group = !dtype,
                 .dtype = std::move(dtype).value_or(""),
                 .shape = std::move(shape),
                 .offset = offset,
                 .external = nullptr,
                 .refusal = std::move(refusal),
                 .same_as = same_as};
  if (read) made.external = std::make_shared<const ReadByPython>(*std::move(read), std::move(why));
  return made;
}

py::tuple tuple_of(const Hdf5Entry& entry) {
  const py::object nothing = py::none();
  return py::make_tuple(py::bytes(entry.path), entry.is_group ? nothing : py::str(entry.dtype),
                        py::tuple(py::cast(entry.shape)), entry.offset, nothing, "", entry.refusal,
                        entry.same_as);
}

}  // namespace

std::optional<Hdf5Listing> listing_of(const py::object& listing) {
  if (listing.is_none()) return std::nullopt;
  Hdf5Listing made;
  for (const py::handle entry : listing) made.push_back(entry_of(entry.cast<Entry>()));
  return made;
}

py::object python_listing(const std::optional<Hdf5Listing>& listing) {
  if (!listing) return py::none();
  py::list listed;
  for (const Hdf5Entry& entry : *listing) listed.append(tuple_of(entry));
  return listed;
}

std::unique_ptr<Archive> open_listed(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                     Mode mode, std::optional<Hdf5Listing> listing) {
  if (!listing) return Archive::open(std::move(source), std::move(mapping), mode);
  return std::make_unique<Hdf5Archive>(Content(std::move(source), std::move(mapping), mode),
                                       *std::move(listing));
}

}  // namespace zerocopy
