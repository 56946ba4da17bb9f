// The records of a document's storages, by their index.
#pragma once

#include <utility>
#include <vector>

#include "container/zip.h"

namespace zerocopy {

class StorageRecords {
 public:
  // These records, which have been checked.
  explicit StorageRecords(std::vector<Record> records) : records_(std::move(records)) {}

  // Entries of a zip directory. The local header of an entry is read and checked each time that its
  // record is asked for. `zip` must outlive the result.
  StorageRecords(const Zip& zip, std::vector<std::size_t> entries)
      : zip_(&zip), entries_(std::move(entries)) {}

  // Throws FormatError if the record is refused.
  Record at(std::size_t storage) const {
    return zip_ == nullptr ? records_[storage] : zip_->record(entries_[storage]);
  }

  // Returns the records that are not stored as they are, without their extents.
  std::vector<Record> encoded() const {
    std::vector<Record> found;
    for (const Record& record : records_) {
      if (record.encoding != Encoding::stored) found.push_back(record);
    }
    for (const std::size_t entry : entries_) {
      if (zip_->is_deflated(entry)) {
        found.push_back({zip_->name(entry), {}, Encoding::deflated, zip_->size(entry)});
      }
    }
    return found;
  }

  // Returns the record of each storage without reading anything: offsets may be unknown.
  std::vector<Record> listed() const {
    std::vector<Record> found = records_;
    for (const std::size_t entry : entries_) found.push_back(zip_->listed(entry));
    return found;
  }

  // Call this before at() is called for most storages: the disk reads the local headers together.
  void expect_all() const {
    if (zip_ != nullptr) zip_->expect_local_headers();
  }

 private:
  std::vector<Record> records_;
  const Zip* zip_ = nullptr;
  std::vector<std::size_t> entries_;
};

}  // namespace zerocopy
