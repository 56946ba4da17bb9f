// Invariants of the records of a checkpoint's storages.
#pragma once

#include <algorithm>
#include <vector>

#include "checkpoint/archive.h"
#include "document_check.h"
#include "fuzz.h"

namespace zerocopy::fuzz {

// Checks that extents lie inside the first `end` bytes and do not overlap.
inline void check_disjoint(std::vector<Extent> extents, std::uint64_t end) {
  std::erase_if(extents, [](const Extent& extent) { return extent.size == 0; });
  std::ranges::sort(extents, {}, &Extent::offset);
  std::uint64_t from = 0;
  for (const Extent& extent : extents) {
    check(extent.fits(end), "a record lies inside its file");
    check(extent.offset >= from, "no byte belongs to two records");
    from = extent.offset + extent.size;
  }
}

inline void check_records(const std::vector<Record>& records, const std::vector<StorageRequest>& wanted,
                          std::uint64_t end) {
  check(records.size() == wanted.size(), "a record for each storage");
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record& record = records[i];
    check(record.name.ends_with(wanted[i].key), "the record of that key");
    check(record.size == wanted[i].nbytes, "a record has its storage's size");
    check(record.encoding == Encoding::deflated || record.size == record.extent.size, "stored: of one size");
    extents.push_back(record.extent);
  }
  check_disjoint(std::move(extents), end);
}

// Makes the Region of a storage as the binding does, and checks its size and alignment.
inline Region check_storage(const Content& content, const Storage& storage, const Record& record) {
  Region region = content.storage(record, *storage.element);
  check(region.size() == storage.nbytes, "a storage's memory has the size that its tensors count on");
  // NOLINTNEXTLINE(*-reinterpret-cast): an address, to see its alignment
  check(reinterpret_cast<std::uintptr_t>(region.data()) % storage.element->size == 0, "it is aligned");
  return region;
}

// Checks an archive with stored storages only: its document, and each storage's record and memory.
inline void check_tensors(Archive& archive, std::uint64_t size) {
  const Document document = archive.document();
  check_document(document);
  const std::vector<StorageRequest> wanted = storage_requests(document);
  const std::vector<Record> records = archive.records(wanted);
  check_records(records, wanted, size);
  for (const Storage* storage : document.storages) {
    check_storage(archive.content(), *storage, records[storage->index]);
  }
}

}  // namespace zerocopy::fuzz
