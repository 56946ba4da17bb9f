#include "binding/torchscript.h"

#include "binding/torch_bridge.h"
#include "checkpoint/zip_archive.h"
#include "python/gil.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// A record by name. Archives that are not zip have none, so the error is the same.
struct NamedRecord {
  const ZipArchive& archive;
  std::size_t record;
};

NamedRecord find(const Archive& archive, const std::string& name) {
  if (const auto* zip = dynamic_cast<const ZipArchive*>(&archive)) {
    if (const auto record = zip->directory().find(name)) return {*zip, *record};
  }
  throw FormatError("checkpoint: record " + quote(name) + " is missing");
}

struct LoadedStorage {
  const Storage* storage;
  Region bytes;
};

std::vector<LoadedStorage> storages_in(const ZipArchive& archive, const std::string& folder,
                                       const Document& document) {
  std::vector<LoadedStorage> stored;
  std::vector<StorageRequest> wanted;
  for (const Storage* storage : document.storages) {
    if (storage->nbytes == 0 || storage->location == "meta") continue;
    stored.push_back({storage, {}});
    wanted.push_back({storage->key, storage->dtype, storage->nbytes});
  }
  const std::vector<Record> records = archive.records_in(folder, wanted);
  for (std::size_t i = 0; i < records.size(); ++i) {
    stored[i].bytes = archive.content().storage(records[i], *stored[i].storage->element);
  }
  return stored;
}

py::object text(std::string_view text) { return copied(&PyUnicode_FromStringAndSize, ByteSpan(text)); }

}  // namespace

py::list record_names(const Archive& archive) {
  py::list names;
  if (const auto* zip = dynamic_cast<const ZipArchive*>(&archive)) {
    const Zip& directory = zip->directory();
    for (std::size_t i = 0; i < directory.count(); ++i) {
      names.append(copied(&PyBytes_FromStringAndSize, ByteSpan(directory.name(i))));
    }
  }
  return names;
}

py::bytes record_content(const Archive& archive, const std::string& name) {
  Region content;
  {
    const GilReleased released;
    const auto [zip, record] = find(archive, name);
    content = zip.read(record);
  }
  return copied(&PyBytes_FromStringAndSize, content.bytes());
}

py::tuple pickle_with_storages(const Archive& archive, const std::string& name, const std::string& folder) {
  Region pickle;
  std::optional<Document> document;
  std::vector<LoadedStorage> stored;
  {
    const GilReleased released;
    const auto [zip, record] = find(archive, name);
    zip.begin_records();
    pickle = zip.read(record);
    document = read_pickle(
        pickle, {.ids = PersistentId::storage_of_script, .stored = zip.directory().stored_size(record)});
    stored = storages_in(zip, folder, *document);
  }
  py::list storages;
  for (const Storage* storage : document->storages) {
    if (storage->location == "meta") storages.append(py::make_tuple(text(storage->key), py::none()));
  }
  for (const auto& [storage, bytes] : stored) {
    storages.append(py::make_tuple(text(storage->key), steal(TorchStorage::over(bytes).wrap())));
  }
  return py::make_tuple(copied(&PyBytes_FromStringAndSize, pickle.bytes()), std::move(storages));
}

}  // namespace zerocopy
