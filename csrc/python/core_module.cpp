// zerocopy._core: inspects files without torch. The other module, zerocopy._C, needs torch's libraries.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "checkpoint/archive.h"
#include "checkpoint/legacy_archive.h"
#include "checkpoint/zip_archive.h"
#include "container/checksum.h"
#include "container/safetensors.h"
#include "container/zip.h"
#include "io/changed_paths.h"
#include "io/file_part.h"
#include "io/maps.h"
#include "memory/budget.h"
#include "pickle/effects.h"
#include "pickle/machine.h"
#include "pickle/scan.h"
#include "python/buffer.h"
#include "python/checkpoint_file.h"
#include "python/collector_pause.h"
#include "python/contents.h"
#include "python/elements.h"
#include "python/errors.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/listing.h"
#include "python/object_source.h"
#include "python/own_values.h"
#include "python/plain_objects.h"
#include "python/record.h"
#include "python/saving.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// Names from files may not be text, so Python gets bytes.
py::bytes bytes_of(std::string_view text) { return {text.data(), text.size()}; }

py::tuple name_of(const NamePair& pair) {
  return py::make_tuple(bytes_of(pair.first), bytes_of(pair.second));
}

template <typename Names>
py::list names_of(const Names& names, std::size_t limit) {
  py::list listed;
  for (const NamePair& name : names) {
    if (listed.size() == limit) break;
    listed.append(name_of(name));
  }
  return listed;
}

py::dict scan(const py::object& buffer, std::size_t limit) {
  const Region pickle = region_of_buffer(buffer.ptr(), Access::any);
  PickleScan found;
  {
    const GilReleased released;
    found = scan_pickle(pickle.bytes(), limit);
  }
  py::list globals;
  for (const ScannedGlobal& global : found.globals) {
    const bool native = known_global(global.module, global.name).action != Action::external;
    globals.append(py::make_tuple(bytes_of(global.module), bytes_of(global.name), native, global.offset,
                                  global.opcode, global.uses, global.called));
  }
  py::dict opcodes;
  for (std::size_t i = 0; i < found.opcodes.size(); ++i) {
    const auto [count, offset] = found.opcodes[i];
    if (count != 0) opcodes[py::int_(i)] = py::make_tuple(count, offset);
  }
  return py::dict(py::arg("globals") = globals, py::arg("globals_left_out") = found.globals_left_out,
                  py::arg("opcodes") = opcodes,
                  py::arg("unresolved") = py::make_tuple(found.unresolved.count, found.unresolved.offset),
                  py::arg("end") = found.end, py::arg("stopped") = found.stopped,
                  py::arg("truncated") = found.truncated, py::arg("fault") = found.fault);
}

// Offset and size of an archive inside a file; none for the whole file.
using Part = std::optional<std::pair<std::uint64_t, std::uint64_t>>;

std::shared_ptr<const Source> source_of_part(const py::object& file, const FileName& name, const Part& part) {
  auto whole = source_of(file, name);
  if (!part) return whole;
  return std::make_shared<const PartSource>(std::move(whole), Extent{part->first, part->second},
                                            TransferOptions());
}

// Returns the container by the first bytes, as Archive::open does; "" for other files.
std::string container(const py::object& file, const FileName& name, const Part& part) {
  const auto source = source_of_part(file, name, part);
  const GilReleased released;
  if (is_hdf5(*source)) return "hdf5";
  if (SafetensorsHeader::recognises(*source)) return "safetensors";
  if (LegacyArchive::recognises(*source)) return "legacy";
  const Region head = source->read({0, std::min<std::uint64_t>(4, source->size())});
  return head.bytes().text() == "PK\3\4" ? "zip" : "";
}

// Returns the kind of a zip archive that has no record for a checkpoint's pickle; "" for any other file.
std::string other_zip(const py::object& file, const FileName& name) {
  auto source = source_of(file, name);
  const GilReleased released;
  try {
    Archive::open(std::move(source), nullptr, Mode::copy_on_write);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with("this is a ")) return error.what();
  }
  return "";
}

std::uint32_t checksum(const py::object& buffer, std::uint32_t crc) {
  const Region content = region_of_buffer(buffer.ptr(), Access::any);
  const GilReleased released;
  return crc32(crc, content.bytes());
}

bool unwritten(int pagemap, std::uint64_t address, std::uint64_t size) {
  const GilReleased released;
  return is_unwritten(pagemap, address, size);
}

// Releases the pages of ranges of addresses, each as begin and size.
std::uint64_t release(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) {
  const GilReleased released;
  std::ranges::sort(ranges);
  std::uint64_t given_back = 0;
  const std::vector<FileMapping> mappings = file_mappings();
  for (auto range = ranges.begin(); range != ranges.end();) {
    const std::uint64_t begin = range->first;
    std::uint64_t end = begin;
    // Ranges in the same page or in adjacent pages are released together.
    while (range != ranges.end() && range->first <= end + page_size()) {
      end = std::max(end, range->first + range->second);
      ++range;
    }
    for (const FileMapping& mapping : mappings) given_back += release_pages(mapping, begin, end);
  }
  return given_back;
}

const RecordType& file_mapping() {
  static const RecordType type("zerocopy._core.FileMapping",
                               {"begin", "end", "shared", "writable", "offset", "identity", "path"});
  return type;
}

py::object record_of(const FileMapping& mapping) {
  return file_mapping().make(mapping.begin, mapping.end, mapping.shared, mapping.writable, mapping.offset,
                             mapping.identity, bytes_of(mapping.path));
}

py::list list_file_mappings() {
  py::list listed;
  for (const FileMapping& mapping : file_mappings()) listed.append(record_of(mapping));
  return listed;
}

py::object find_file_mapping(std::uint64_t address) {
  const std::optional<FileMapping> mapping = file_mapping_at(address);
  return mapping ? record_of(*mapping) : py::none();
}

const RecordType& zip_record() {
  static const RecordType type("zerocopy._core.ZipRecord", {"name", "offset", "stored_size", "is_deflated",
                                                            "size", "crc", "fault", "header", "end"});
  return type;
}

const RecordType& storage_record() {
  static const RecordType type("zerocopy._core.StorageRecord",
                               {"key", "dtype", "offset", "stored_size", "is_deflated", "size"});
  return type;
}

// Returns the ZipRecord of each record in the directory. Records with a bad local header have no
// offset. Offsets count from the start of the part. `storages` says whether records of storages are among
// them.
py::list zip_records(const py::object& file, const FileName& name, const Part& part, bool storages) {
  const Zip zip(source_of_part(file, name, part));
  const std::string root(zip.root());
  py::list records;
  for (std::size_t i = 0; i < zip.count(); ++i) {
    if (!storages && zip.name(i).starts_with("data/")) continue;
    Record record{.name = zip.name(i), .extent = {}, .size = zip.size(i)};
    std::string fault;
    try {
      record = zip.record(i);
    } catch (const FormatError& error) {
      fault = error.what();
    }
    records.append(zip_record().make(root + "/" + std::string(record.name), record.extent.offset,
                                     record.extent.size, record.encoding == Encoding::deflated, record.size,
                                     zip.crc(i), fault, zip.span(i).offset,
                                     zip.span(i).offset + zip.span(i).size));
  }
  return records;
}

// Returns the listing of an HDF5 file, or None if it needs h5py.
py::object hdf5_listing(const py::object& file, const FileName& name) {
  const auto source = source_of(file, name);
  std::optional<Hdf5Listing> listing;
  {
    const GilReleased released;
    listing = list_plain_hdf5(*source);
  }
  return python_listing(listing);
}

py::list attributes_of(const Effects& effects) {
  py::list listed;
  for (const auto& [target, attribute] : effects.attributes) {
    listed.append(py::make_tuple(name_of(target), bytes_of(attribute)));
  }
  return listed;
}

py::object offset_of(const Record& record) {
  return record.extent.offset == Record::kUnknown ? py::object(py::none()) : py::int_(record.extent.offset);
}

// Returns the StorageRecord of each storage.
py::list storages_of(const Document& document, const std::vector<Record>& records) {
  py::list listed;
  for (const Storage* storage : document.storages) {
    const Record& record = records[storage->index];
    listed.append(storage_record().make(py::str(storage->key.data(), storage->key.size()),
                                        storage->element->name, offset_of(record), record.extent.size,
                                        record.encoding == Encoding::deflated, record.size));
  }
  return listed;
}

// Returns everything that the allow-lists decide on: globals that are called, created or changed, and
// attributes that are set. `foreign` lists all globals that the machine does not make itself.
py::dict questions_of(const Document& document, std::size_t limit) {
  const Effects effects = effects_of(document);
  std::set<NamePair> externals;
  for (const Global* global : document.externals) externals.insert({global->module, global->name});
  return py::dict(py::arg("foreign") = names_of(externals, limit),
                  py::arg("called") = names_of(effects.called, limit),
                  py::arg("created") = names_of(effects.created, limit),
                  py::arg("changed") = names_of(effects.changed, limit),
                  py::arg("attributes") = attributes_of(effects), py::arg("odd") = effects.odd);
}

// Reads a pickle outside of any archive, and returns what the allow-lists decide on, as questions_of does.
py::dict examine_pickle(const py::object& buffer, std::size_t limit) {
  const Region pickle = region_of_buffer(buffer.ptr(), Access::any);
  std::optional<Document> document;
  {
    const GilReleased released;
    document = read_pickle(pickle);
  }
  return questions_of(*document, limit);
}

// Reads a checkpoint as a safe load does up to the allow-lists, which are not consulted. Returns what they
// decide on, as questions_of does, and facts about the file. Throws the errors of a load up to that point.
py::dict examine(const py::object& file, const FileName& name, std::size_t limit, const py::object& listing,
                 const Part& part, bool stubs) {
  std::optional<Hdf5Listing> listed = listing_of(listing);
  std::unique_ptr<Archive> archive;
  std::optional<Document> document;
  std::vector<Record> records;
  auto source = source_of_part(file, name, part);
  {
    const GilReleased released;
    archive = open_listed(std::move(source), nullptr, Mode::copy_on_write, std::move(listed));
    document.emplace(Region());
    if (!archive->is_torchscript()) {
      ParsedCheckpoint parsed = list_checkpoint(*archive, stubs);
      Content::require_readable(parsed.records);
      document = std::move(parsed.document);
      records = std::move(parsed.records);
    }
  }
  py::dict facts = questions_of(*document, limit);
  facts["container"] = archive->container();
  facts["big_endian"] = archive->content().big_endian();
  facts["end"] = archive->end();
  facts["behind"] = archive->is_torchscript() ? 0 : archive->behind();
  facts["storages"] = storages_of(*document, records);
  return facts;
}

using KnownRow = std::tuple<py::bytes, std::string, std::array<std::int64_t, 5>>;

KnownPath known_path(const KnownRow& row) {
  const auto& [path, kind, identity] = row;
  const auto kinds = {KnownPath::Kind::file, KnownPath::Kind::missing, KnownPath::Kind::folder,
                      KnownPath::Kind::listed};
  constexpr std::array<std::string_view, 4> kNames = {"file", "missing", "folder", "names"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), kind);
  if (found == kNames.end()) throw py::value_error("a path cannot be known as '" + kind + "'");
  return {path, *(kinds.begin() + (found - kNames.begin())), identity};
}

std::vector<std::size_t> list_changed_paths(const std::vector<KnownRow>& rows, bool within_boot) {
  std::vector<KnownPath> known;
  known.reserve(rows.size());
  for (const KnownRow& row : rows) known.push_back(known_path(row));
  const GilReleased released;
  return changed_paths(known, within_boot);
}

}  // namespace
}  // namespace zerocopy

PYBIND11_MODULE(_core, module) {
  using namespace zerocopy;  // NOLINT(google-build-using-namespace): the module's own names
  module.doc() = "The native part of zerocopy that looks at files without torch.";
  register_exceptions();
  py::class_<Budget>(module, "Budget")
      .def(py::init([](std::uint64_t file_size, std::string complaint) {
             return Budget(file_size, std::move(complaint));
           }),
           py::arg("file_size"), py::arg("complaint"))
      .def("charge", &Budget::charge, py::arg("bytes"));
  register_collector_pause(module);
  register_own_values(module);
  register_saving(module);
  module.attr("ZipRecord") = zip_record().type();
  module.attr("FileMapping") = file_mapping().type();
  module.attr("StorageRecord") = storage_record().type();
  register_contents(module);
  register_checkpoint_file(module);
  register_plain_objects(module);
  register_elements(module);
  module.def("scan", &scan, py::arg("pickle"), py::arg("limit"));
  module.def("examine_pickle", &examine_pickle, py::arg("pickle"), py::arg("limit"));
  module.def("container", &container, py::arg("file"), py::arg("name"), py::arg("part") = py::none());
  module.def("other_zip", &other_zip, py::arg("file"), py::arg("name"));
  module.def("changed_paths", &list_changed_paths, py::arg("rows"), py::arg("within_boot"));
  module.def("file_mappings", &list_file_mappings);
  module.def("file_mapping_at", &find_file_mapping, py::arg("address"));
  module.def("release", &release, py::arg("ranges"));
  module.def("is_unwritten", &unwritten, py::arg("pagemap"), py::arg("address"), py::arg("size"));
  module.def("crc32", &checksum, py::arg("content"), py::arg("crc") = 0);
  module.def("zip_records", &zip_records, py::arg("file"), py::arg("name"), py::arg("part") = py::none(),
             py::arg("storages") = true);
  module.def("hdf5_listing", &hdf5_listing, py::arg("file"), py::arg("name"));
  module.def("examine", &examine, py::arg("file"), py::arg("name"), py::arg("limit"),
             py::arg("listing") = py::none(), py::arg("part") = py::none(), py::arg("stubs") = false);
}
