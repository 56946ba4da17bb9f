#include "python/archive_opener.h"

#include <pybind11/stl.h>

#include <optional>

#include "checkpoint/published_archive.h"
#include "io/file_part.h"
#include "memory/budget.h"
#include "python/buffer.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/listing.h"
#include "python/object_source.h"
#include "python/opened_file.h"
#include "python/transfer_options.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

using ArchivePointer = std::unique_ptr<Archive>;

Mode mode_of(const std::string& letters) {
  if (letters == "c") return Mode::copy_on_write;
  if (letters == "r") return Mode::read_only;
  if (letters == "r+") return Mode::shared;
  throw py::value_error("mode must be 'c', 'r' or 'r+', not '" + letters + "'");
}

// h5py's listing of a file. Without it, the file is parsed.
using Listed = std::optional<Hdf5Listing>;

ArchivePointer archive_of_file(File file, std::uint64_t start, Mode mode, ReadStrategy strategy,
                               const TransferOptions& options, Listed listed) {
  OpenedFile found(std::move(file), start, mode, strategy, options);
  return open_listed(std::move(found.source), std::move(found.mapping), mode, std::move(listed));
}

File file_at(const std::string& path, Mode mode) {
  return File::open(path, mode == Mode::shared ? File::Access::read_write : File::Access::read);
}

ArchivePointer open_path(const py::bytes& path, const std::string& letters, const std::string& strategy,
                         unsigned threads, const py::object& listing) {
  const std::string name = path;
  const Mode mode = mode_of(letters);
  const ReadStrategy parsed_strategy = parse_strategy(strategy);
  const TransferOptions options = transfer_options(threads);
  Listed listed = listing_of(listing);
  const GilReleased released;
  return archive_of_file(file_at(name, mode), 0, mode, parsed_strategy, options, std::move(listed));
}

ArchivePointer open_descriptor(int descriptor, std::uint64_t start, const FileName& name,
                               const std::string& letters, const std::string& strategy, unsigned threads,
                               const py::object& listing) {
  const Mode mode = mode_of(letters);
  const ReadStrategy parsed_strategy = parse_strategy(strategy);
  const TransferOptions options = transfer_options(threads);
  Listed listed = listing_of(listing);
  const GilReleased released;
  return archive_of_file(File::duplicate(descriptor, name.bytes), start, mode, parsed_strategy, options,
                         std::move(listed));
}

// A buffer cannot be mapped copy-on-write, so mode "c" copies each storage. Other modes share the
// buffer.
ArchivePointer open_buffer(const py::object& buffer, const std::string& letters, const py::object& listing) {
  const Mode mode = mode_of(letters);
  Listed listed = listing_of(listing);
  Region region = region_of_buffer(buffer.ptr(), mode == Mode::shared ? Access::writable : Access::any);
  const GilReleased released;
  auto source = std::make_shared<const MemorySource>(region);
  return open_listed(std::move(source), mode == Mode::copy_on_write ? nullptr : WholeMapper::of(region), mode,
                     std::move(listed));
}

// A file object is read into private memory, at offsets.
ArchivePointer open_object(const py::object& reader, const py::object& listing) {
  Listed listed = listing_of(listing);
  std::shared_ptr<const Source> source = source_of_object(reader);
  const GilReleased released;
  return open_listed(std::move(source), nullptr, Mode::copy_on_write, std::move(listed));
}

// A file that contains several archives, one after the other. The fixed amounts of their budgets
// together are that of one checkpoint of `total` bytes.
class MultiArchiveFile {
 public:
  MultiArchiveFile(const py::bytes& path, const std::string& letters, const std::string& strategy,
                   unsigned threads, std::uint64_t total)
      : mode_(mode_of(letters)), options_(transfer_options(threads)), total_(total) {
    const std::string name = path;
    const ReadStrategy parsed_strategy = parse_strategy(strategy);
    const GilReleased released;
    file_ = OpenedFile(file_at(name, mode_), 0, mode_, parsed_strategy, options_);
  }

  ArchivePointer archive(std::uint64_t offset, std::uint64_t size) const {
    const GilReleased released;
    auto source = std::make_shared<const PartSource>(file_.source, Extent{offset, size}, options_);
    auto mapping = file_.mapping ? std::make_shared<PartMapper>(file_.mapping, offset) : nullptr;
    return Archive::open(std::move(source), std::move(mapping), mode_, Budget::fixed_part(size, total_));
  }

 private:
  Mode mode_;
  TransferOptions options_;
  std::uint64_t total_;
  OpenedFile file_;
};

using Pair = std::pair<std::uint64_t, std::uint64_t>;

// Opens a kept result from (descriptor, offset, size) of each part. The tables (offset, rows) and the
// pickle (offset, size) are in the first part.
ArchivePointer open_published(const std::vector<std::tuple<int, std::uint64_t, std::uint64_t>>& parts,
                              Pair mappings, Pair storages, Pair pickle) {
  const GilReleased released;
  if (parts.empty()) throw FormatError("published: expected at least one part");
  std::vector<std::uint64_t> sizes;
  for (const auto& [descriptor, offset, size] : parts) sizes.push_back(size);
  const auto map = [&](std::size_t number, Extent extent) {
    const auto& [descriptor, offset, size] = parts[number];
    const File file = File::duplicate(descriptor, "a published part");
    return map_extent(file, {offset + extent.offset, extent.size}, Mode::copy_on_write);
  };
  const Region first = map(0, {0, sizes[0]});
  return PublishedArchive::of(first, sizes,
                              {.mappings = {mappings.first, mappings.second},
                               .storages = {storages.first, storages.second},
                               .pickle = {pickle.first, pickle.second}},
                              map);
}

}  // namespace

void register_archive_opener(py::module_& module, ArchiveClass& archive) {
  py::class_<MultiArchiveFile>(module, "MultiArchiveFile")
      .def(py::init<const py::bytes&, const std::string&, const std::string&, unsigned, std::uint64_t>(),
           py::arg("path"), py::arg("mode"), py::arg("strategy"), py::arg("threads"), py::arg("total"))
      .def("archive", &MultiArchiveFile::archive, py::arg("offset"), py::arg("size"));
  archive
      .def_static("open", &open_path, py::arg("path"), py::arg("mode"), py::arg("strategy"),
                  py::arg("threads") = 1, py::arg("listing") = py::none())
      .def_static("open_descriptor", &open_descriptor, py::arg("descriptor"), py::arg("start"),
                  py::arg("name"), py::arg("mode"), py::arg("strategy"), py::arg("threads") = 1,
                  py::arg("listing") = py::none())
      .def_static("open_buffer", &open_buffer, py::arg("buffer"), py::arg("mode"),
                  py::arg("listing") = py::none())
      .def_static("open_object", &open_object, py::arg("reader"), py::arg("listing") = py::none())
      .def_static("open_published", &open_published, py::arg("parts"), py::arg("mappings"),
                  py::arg("storages"), py::arg("pickle"))
      .def_property_readonly("is_direct",
                             [](const Archive& self) { return self.content().source()->is_direct(); });
}

}  // namespace zerocopy
