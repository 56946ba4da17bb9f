#include "checkpoint/archive.h"

#include "checkpoint/hdf5_archive.h"
#include "checkpoint/legacy_archive.h"
#include "checkpoint/program_archive.h"
#include "checkpoint/safetensors_archive.h"
#include "checkpoint/zip_archive.h"

namespace zerocopy {

std::unique_ptr<Archive> Archive::open(std::shared_ptr<const Source> source, std::shared_ptr<Mapper> mapping,
                                       Mode mode, std::uint64_t fixed_budget) {
  const bool hdf5 = is_hdf5(*source);
  const bool safetensors = !hdf5 && SafetensorsHeader::recognises(*source);
  const bool legacy = !hdf5 && !safetensors && LegacyArchive::recognises(*source);
  Content content(std::move(source), std::move(mapping), mode, fixed_budget);
  if (hdf5) {
    std::optional<Hdf5Listing> listing = list_plain_hdf5(*content.source());
    if (!listing) throw UnsupportedError("hdf5: this file needs an HDF5 library: install h5py");
    return std::make_unique<Hdf5Archive>(std::move(content), *std::move(listing));
  }
  if (safetensors) return std::make_unique<SafetensorsArchive>(std::move(content));
  if (legacy) return std::make_unique<LegacyArchive>(std::move(content));
  Zip zip(content.source());
  if (ProgramArchive::recognises(zip)) {
    return std::make_unique<ProgramArchive>(std::move(content), std::move(zip));
  }
  return std::make_unique<ZipArchive>(std::move(content), std::move(zip));
}

std::vector<StorageRequest> storage_requests(const Document& document) {
  std::vector<StorageRequest> storages;
  storages.reserve(document.storages.size());
  for (const Storage* storage : document.storages) {
    storages.push_back({storage->key, storage->dtype, storage->nbytes});
  }
  return storages;
}

ParsedCheckpoint read_checkpoint(Archive& archive, bool stubs) {
  archive.begin_records();
  Document document = archive.document(stubs);
  std::vector<Record> records = archive.records(storage_requests(document));
  return {std::move(document), std::move(records)};
}

ParsedCheckpoint list_checkpoint(Archive& archive, bool stubs) {
  if (!archive.content().source()->is_far()) return read_checkpoint(archive, stubs);
  Document document = archive.document(stubs);
  std::vector<Record> records = archive.found_records(storage_requests(document)).listed();
  return {std::move(document), std::move(records)};
}

}  // namespace zerocopy
