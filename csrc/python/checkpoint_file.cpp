#include "python/checkpoint_file.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/archive.h"
#include "io/file_part.h"
#include "io/file_system.h"
#include "memory/budget.h"
#include "python/buffer.h"
#include "python/contents.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/listing.h"
#include "python/object_source.h"
#include "python/opened_file.h"
#include "python/transfer_options.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// The bytes of a storage as Python's buffer protocol gives them.
struct Memory {
  Region region;
  bool is_writable;
};

py::buffer_info buffer_of(Memory& memory) {
  return {memory.region.data(), 1, "B", 1, {static_cast<py::ssize_t>(memory.region.size())}, {py::ssize_t{1}},
          !memory.is_writable};
}

// The storages of a checkpoint, by their index.
class Storages {
 public:
  Storages(std::unique_ptr<Archive> archive, ParsedCheckpoint parsed, bool is_writable)
      : archive_(std::move(archive)), parsed_(std::move(parsed)), is_writable_(is_writable) {}

  Memory memory(std::size_t i) const {
    const GilReleased released;
    const Content& content = archive_->content();
    content.require_unchanged();
    return {content.storage(parsed_.records.at(i), *parsed_.document.storages[i]->element), is_writable_};
  }

 private:
  std::unique_ptr<Archive> archive_;
  ParsedCheckpoint parsed_;
  bool is_writable_;
};

// Offset and size of a checkpoint in the file, and the bytes of all checkpoints that share a budget.
using Part = std::optional<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>;

// A file, the memory of a buffer, or a file object, of which each storage is read when asked for. Storages
// lie in the file's mapping or in the buffer if the strategy maps, else in memory of their own.
class CheckpointFile {
 public:
  CheckpointFile(const py::object& file, const FileName& name, bool is_writable, std::uint64_t start,
                 const std::string& strategy, unsigned threads)
      : mode_(is_writable ? Mode::copy_on_write : Mode::read_only), options_(transfer_options(threads)) {
    const ReadStrategy parsed = parse_strategy(strategy);
    if (py::isinstance<py::int_>(file)) {
      const int descriptor = file.cast<int>();
      const GilReleased released;
      file_ = OpenedFile(File::duplicate(descriptor, name.bytes), start, mode_, parsed, options_);
    } else if (PyObject_CheckBuffer(file.ptr()) != 0) {
      const bool is_lent = parsed == ReadStrategy::whole;
      Region whole = region_of_buffer(file.ptr(), is_lent && is_writable ? Access::writable : Access::any);
      file_.source = std::make_shared<const MemorySource>(whole);
      if (is_lent) file_.mapping = WholeMapper::of(std::move(whole));
    } else {
      file_.source = source_of_object(file);
    }
  }

  // Returns what `contents` returns, without values that are not tensors, and the Storages.
  std::pair<py::dict, std::unique_ptr<Storages>> contents(const py::object& listing, const Part& part) const {
    std::optional<Hdf5Listing> listed = listing_of(listing);
    std::unique_ptr<Archive> archive;
    std::optional<ParsedCheckpoint> parsed;
    {
      const GilReleased released;
      archive = opened(part, std::move(listed));
      parsed.emplace(read_checkpoint(*archive, /*stubs=*/true));
    }
    py::dict facts = facts_of(*archive, *parsed, /*with_others=*/false);
    const bool is_writable = mode_ == Mode::copy_on_write;
    return {std::move(facts),
            std::make_unique<Storages>(std::move(archive), std::move(*parsed), is_writable)};
  }

 private:
  std::unique_ptr<Archive> opened(const Part& part, std::optional<Hdf5Listing> listed) const {
    if (!part) return open_listed(file_.source, file_.mapping, mode_, std::move(listed));
    const auto [offset, size, total] = *part;
    return Archive::open(std::make_shared<const PartSource>(file_.source, Extent{offset, size}, options_),
                         file_.mapping ? std::make_shared<PartMapper>(file_.mapping, offset) : nullptr, mode_,
                         Budget::fixed_part(size, total));
  }

  Mode mode_;
  TransferOptions options_;
  OpenedFile file_;
};

py::tuple as_tuple(const FileSystem& found) { return py::make_tuple(found.name, found.network); }

}  // namespace

void register_checkpoint_file(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol()).def_buffer(&buffer_of);
  py::class_<Storages>(module, "Storages").def("memory", &Storages::memory, py::arg("number"));
  py::class_<CheckpointFile>(module, "CheckpointFile")
      .def(py::init<const py::object&, const FileName&, bool, std::uint64_t, const std::string&, unsigned>(),
           py::arg("file"), py::arg("name"), py::arg("is_writable"), py::arg("start") = 0,
           py::arg("strategy") = "whole", py::arg("threads") = 1)
      .def("contents", &CheckpointFile::contents, py::arg("listing") = py::none(),
           py::arg("part") = py::none());
  module.def(
      "file_system_of_path", [](const py::bytes& path) { return as_tuple(file_system_of(path)); },
      py::arg("path"));
  module.def(
      "file_system_of_descriptor", [](int descriptor) { return as_tuple(file_system_of(descriptor, "")); },
      py::arg("descriptor"));
}

}  // namespace zerocopy
