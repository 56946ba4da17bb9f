// zerocopy._C: the names that Python sees.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>

#include "binding/builder.h"
#include "binding/lazy.h"
#include "binding/read_ahead.h"
#include "binding/records.h"
#include "binding/storages.h"
#include "binding/torch_bridge.h"
#include "binding/torchscript.h"
#include "binding/transfer_plan.h"
#include "checkpoint/archive.h"
#include "checkpoint/name_index.h"
#include "pickle/machine.h"
#include "pickle/opcode.h"
#include "python/archive_opener.h"
#include "python/errors.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/names.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

ParsedCheckpoint read_for_load(Archive& archive, bool stubs = false) {
  ParsedCheckpoint parsed = read_checkpoint(archive, stubs);
  Content::require_inflatable(parsed.records);
  Content::require_readable(parsed.records);
  return parsed;
}

// Looks up the record of each storage, but checks a record when it is used.
FoundCheckpoint read_for_use(Archive& archive, bool stubs) {
  Document document = archive.document(stubs);
  StorageRecords records = archive.found_records(storage_requests(document));
  Content::require_inflatable(records.encoded());
  return {std::move(document), std::move(records)};
}

// Passes pairs (module, name) of a pickle to Python, as bytes since they may not be text. A few
// bytes of the pickle can repeat long names, so each name is converted once.
class NameList {
 public:
  void append(std::string_view module, std::string_view name) {
    pairs_.append(py::make_tuple(bytes(module), bytes(name)));
  }
  py::list take() { return std::move(pairs_); }

 private:
  const py::bytes& bytes(std::string_view part) {
    return made_.try_emplace({part.data(), part.size()}, part.data(), part.size()).first->second;
  }

  py::list pairs_;
  std::map<std::pair<const char*, std::size_t>, py::bytes> made_;  // by position in the pickle
};

py::list list_foreign_globals(ByteSpan pickle) {
  NameList foreign;
  for (const auto& [module, name] : list_globals(pickle)) {
    if (known_global(module, name).action == Action::external) foreign.append(module, name);
  }
  return foreign.take();
}

py::list foreign_globals(const Document& document) {
  NameList foreign;
  for (const Global* global : document.externals) foreign.append(global->module, global->name);
  return foreign.take();
}

template <typename Parsed>
struct Allowed {
  Parsed parsed;
  py::dict globals;  // {(module, name): object}
};

// Reads a zerocopy.loading.device.staging.Destination.
Destination destination_of(const py::object& given) {
  return {given.attr("restore"), given.attr("cpu_as_is").cast<bool>(), given.attr("transfer")};
}

// The part of the safe load before building. `read` parses the archive. `allow` gets every global
// that is not native, and returns {(module, name): object} or raises. It is called before errors in
// the pickle are reported.
template <typename Read>
auto read_allowed(Archive& archive, const py::object& allow, const Read& read)
    -> Allowed<decltype(read(archive))> {
  std::optional<decltype(read(archive))> parsed;
  std::exception_ptr fault;
  Region named;
  {
    const GilReleased released;
    try {
      parsed = read(archive);
      // One flipped bit can turn a harmless global into another. A damaged pickle is refused
      // here, so that no error of `allow` suggests that the user allow that wrong global.
      if (!parsed->document.externals.empty()) archive.require_undamaged_pickle();
    } catch (const Error&) {
      fault = std::current_exception();
      if (archive.is_pickled()) {
        archive.require_undamaged_pickle();
        named = archive.pickle();
      }
    }
  }
  py::dict globals = allow(fault ? list_foreign_globals(named.bytes()) : foreign_globals(parsed->document));
  if (fault) std::rethrow_exception(fault);
  return {std::move(*parsed), std::move(globals)};
}

// `by_name` returns the leaves by their dotted names, in place of the object.
py::object load(Archive& archive, const py::object& allow, const py::object& destination,
                const std::string& encoding, const py::object& construction, bool by_name) {
  const bool stubs = construction.attr("makes_stubs").cast<bool>();
  const auto [parsed, globals] =
      read_allowed(archive, allow, [&](Archive& opened) { return read_for_load(opened, stubs); });
  const Document& document = parsed.document;
  RealTensors tensors(document, archive.content(), parsed.records, destination_of(destination), construction);
  const BuildPolicy policy{globals, encoding, construction};
  Builder builder(document, tensors, policy);
  if (!by_name) return builder.value(document.root);
  py::dict leaves;
  const NameIndex name_index(document);
  for (const Leaf& leaf : name_index.leaves()) leaves[text_of(leaf.name)] = builder.value(leaf.value);
  return leaves;
}

// Loads over existing storages: storage_at(i) returns the i-th storage of explain().
py::object load_over(Archive& archive, const py::object& allow, const py::object& storage_at,
                     const std::string& encoding, const py::object& construction) {
  const auto [parsed, globals] =
      read_allowed(archive, allow, [](Archive& opened) { return read_for_load(opened); });
  const Document& document = parsed.document;
  GivenTensors tensors(document, archive.content(), parsed.records, storage_at, construction);
  const BuildPolicy policy{globals, encoding, construction};
  return Builder(document, tensors, policy).value(document.root);
}

std::unique_ptr<Lazy> read_lazily(py::object archive, const py::object& allow, const py::object& destination,
                                  const std::string& encoding, const py::object& construction,
                                  const FileName& name) {
  const bool stubs = construction.attr("makes_stubs").cast<bool>();
  auto [parsed, globals] = read_allowed(archive.cast<Archive&>(), allow,
                                        [&](Archive& opened) { return read_for_use(opened, stubs); });
  return std::make_unique<Lazy>(std::move(archive), std::move(parsed), std::move(globals), encoding,
                                destination_of(destination), construction, name);
}

// For weights_only=False: returns the storages for (key, class name, number of elements), in order.
py::list storages(Archive& archive,
                  const std::vector<std::tuple<std::string, std::string, std::int64_t>>& named) {
  std::vector<StorageRequest> wanted;
  for (const auto& [key, storage_class, numel] : named) {
    const DType* dtype = dtype_by_storage(storage_class);
    std::uint64_t nbytes = 0;
    if (dtype == nullptr) throw FormatError("checkpoint: unknown storage class " + quote(storage_class));
    if (!byte_count(numel, dtype->size, nbytes)) {
      throw FormatError("checkpoint: a storage cannot have " + std::to_string(numel) + " elements");
    }
    wanted.push_back({key, dtype, nbytes});
  }
  std::vector<Region> regions;
  {
    const GilReleased released;
    const std::vector<Record> records = archive.records(wanted);
    Content::require_inflatable(records);
    std::vector<Content::Need> needs;
    for (std::size_t i = 0; i < records.size(); ++i) needs.push_back({&records[i], wanted[i].dtype});
    regions = archive.content().read_storages(needs);
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (regions[i].data() == nullptr) {
        regions[i] = archive.content().storage(records[i], *wanted[i].dtype);
      }
    }
  }
  py::list made;
  for (const Region& region : regions) {
    made.append(py::reinterpret_steal<py::object>(TorchStorage::over(region).wrap()));
  }
  return made;
}

const char* name_of(Placement::How how) {
  switch (how) {
    case Placement::How::mapped:
      return "mapped";
    case Placement::How::copied:
      return "copied";
    case Placement::How::inflated:
      return "inflated";
  }
  return "";
}

// Returns the StoragePlacement of each storage, without building or reading.
py::list explain(Archive& archive) {
  std::optional<ParsedCheckpoint> parsed;
  {
    const GilReleased released;
    parsed = read_for_load(archive, /*stubs=*/true);
  }
  py::list explained;
  for (const Storage* storage : parsed->document.storages) {
    const Record& record = parsed->records[storage->index];
    const auto [how, why] = archive.content().placement(record, *storage->element);
    explained.append(storage_placement().make(py::str(storage->key.data(), storage->key.size()),
                                              storage->element->name, storage->nbytes,
                                              py::str(storage->location.data(), storage->location.size()),
                                              record.extent.offset, name_of(how), why));
  }
  return explained;
}

py::bytes pickle_of(const Archive& archive) {
  Region pickle;
  {
    const GilReleased released;
    pickle = archive.pickle();
  }
  return {pickle.bytes().text().data(), pickle.size()};
}

// Throws FormatError if the pickle is damaged, or does not end.
void require_whole_pickle(const Archive& archive) {
  const GilReleased released;
  archive.require_undamaged_pickle();
  pickle_size(archive.pickle().bytes());
}

void require_unchanged(const Archive& archive) {
  const GilReleased released;  // may block on a network file system
  archive.content().require_unchanged();
}

}  // namespace
}  // namespace zerocopy

PYBIND11_MODULE(_C, module) {
  using namespace zerocopy;  // NOLINT(google-build-using-namespace): the module's own names
  module.doc() = "The native part of zerocopy. Use the names of the package instead.";
  register_exceptions();
  register_records(module);

  ArchiveClass archive(module, "Archive");
  register_archive_opener(module, archive);
  archive.def_property_readonly("container", &Archive::container)
      .def_property_readonly("is_torchscript", &Archive::is_torchscript)
      .def_property_readonly("big_endian", [](const Archive& self) { return self.content().big_endian(); })
      .def_property_readonly("end", &Archive::end)
      .def_property_readonly("is_pickled", &Archive::is_pickled)
      .def_property_readonly("left_out", &names_left_out)
      .def("begin_records", &Archive::begin_records)
      .def("pickle", &pickle_of)
      .def("explain", &explain)
      .def("load", &load, py::arg("allow"), py::arg("destination"), py::arg("encoding"),
           py::arg("construction"), py::arg("by_name") = false)
      .def("load_over", &load_over, py::arg("allow"), py::arg("storage_at"), py::arg("encoding"),
           py::arg("construction"))
      .def("storages", &storages, py::arg("named"))
      .def("record_names", &record_names)
      .def("record", &record_content, py::arg("name"))
      .def("pickle_with_storages", &pickle_with_storages, py::arg("name"), py::arg("folder"))
      .def("require_whole_pickle", &require_whole_pickle)
      .def("require_unchanged", &require_unchanged)
      .def("require_there", [](const Archive& self) { self.content().require_in_place(); });

  py::class_<Lazy>(module, "Lazy")
      .def(py::init(&read_lazily), py::arg("archive"), py::arg("allow"), py::arg("destination"),
           py::arg("encoding"), py::arg("construction"), py::arg("name"))
      .def_property_readonly("container", &Lazy::container)
      .def_property_readonly("name", &Lazy::name)
      .def_property_readonly("closed", &Lazy::closed)
      .def_property_readonly("left_out", &Lazy::left_out)
      .def_property_readonly("nbytes", &Lazy::nbytes)
      .def("names", &Lazy::names)
      .def("other_names", &Lazy::other_names)
      .def("find", &Lazy::find, py::arg("name"))
      .def("entry", &Lazy::entry, py::arg("i"))
      .def("expect_records", &Lazy::expect_records)
      .def("outlines", &Lazy::outlines)
      .def("build", &Lazy::build, py::arg("objects"), py::arg("chosen"))
      .def("leaf", &Lazy::leaf, py::arg("name"), py::arg("objects"))
      .def("leaves", &Lazy::leaves_named, py::arg("names"), py::arg("objects"))
      .def("metadata", &Lazy::metadata, py::arg("objects"))
      .def("part", &Lazy::part, py::arg("i"), py::arg("offset"), py::arg("size"), py::arg("stride"))
      .def("tensor_at", &Lazy::tensor_at, py::arg("index"))
      .def("shown_at", &Lazy::shown_at, py::arg("index"))
      .def("require_there", &Lazy::require_there)
      .def("close", &Lazy::close);

  module.def("bridge_abi", [] { return ZEROCOPY_BRIDGE_ABI; });
  module.def(
      "load_bridge", [](const py::bytes& path, const std::string& stamp) { load_bridge(path, stamp); },
      py::arg("path"), py::arg("stamp"));
  module.def("add_dtypes_of_release", &add_dtypes_of_release);
  register_read_ahead(module);
  register_storages(module);
  register_transfer_plan(module);
  module.def(
      "foreign_globals",
      [](const py::bytes& pickle) { return list_foreign_globals(ByteSpan(std::string_view(pickle))); },
      py::arg("pickle"));
}
