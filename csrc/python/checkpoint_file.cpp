#include "python/checkpoint_file.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/archive.h"
#include "io/file_part.h"
#include "memory/budget.h"
#include "python/buffer.h"
#include "python/contents.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/listing.h"
#include "python/object_source.h"

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

// A file that is mapped, the memory of a buffer, or a file object, of which each storage is read when asked
// for.
class CheckpointFile {
 public:
  CheckpointFile(const py::object& file, const FileName& name, bool is_writable)
      : mode_(is_writable ? Mode::copy_on_write : Mode::read_only) {
    if (py::isinstance<py::int_>(file)) {
      map(file.cast<int>(), name);
    } else if (PyObject_CheckBuffer(file.ptr()) != 0) {
      Region whole = region_of_buffer(file.ptr(), is_writable ? Access::writable : Access::any);
      source_ = std::make_shared<const MemorySource>(whole);
      mapping_ = WholeMapper::of(std::move(whole));
    } else {
      source_ = source_of_object(file);
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
    if (!part) return open_listed(source_, mapping_, mode_, std::move(listed));
    const auto [offset, size, total] = *part;
    return Archive::open(std::make_shared<const PartSource>(source_, Extent{offset, size}, TransferOptions()),
                         mapping_ ? std::make_shared<PartMapper>(mapping_, offset) : nullptr, mode_,
                         Budget::fixed_part(size, total));
  }

  void map(int descriptor, const FileName& name) {
    const GilReleased released;
    auto source = std::make_shared<const FileSource>(File::duplicate(descriptor, name.bytes), 0);
    Region whole = map_file(source->file(), 0, mode_);
    advise(whole.bytes(), Advice::huge);  // as for tensors
    source_ = std::move(source);
    mapping_ = WholeMapper::of(std::move(whole));
  }

  Mode mode_;
  std::shared_ptr<const Source> source_;
  std::shared_ptr<Mapper> mapping_;  // null if bytes are read into private memory
};

}  // namespace

void register_checkpoint_file(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol()).def_buffer(&buffer_of);
  py::class_<Storages>(module, "Storages").def("memory", &Storages::memory, py::arg("number"));
  py::class_<CheckpointFile>(module, "CheckpointFile")
      .def(py::init<const py::object&, const FileName&, bool>(), py::arg("file"), py::arg("name"),
           py::arg("is_writable"))
      .def("contents", &CheckpointFile::contents, py::arg("listing") = py::none(),
           py::arg("part") = py::none());
}

}  // namespace zerocopy
