#include "checkpoint/hdf5_archive.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "checkpoint/tensor_document.h"

namespace zerocopy {
namespace {

constexpr std::string_view kTable = "offsets_table";
constexpr std::string_view kPickle = "data.pkl";
constexpr std::uint64_t kMaxPickle = std::uint64_t{1} << 30U;
constexpr std::uint64_t kMaxText = 64;

using Row = std::array<std::int64_t, 3>;  // key, offset, size

[[noreturn]] void fail(const Hdf5Entry& entry, const std::string& reason) {
  throw FormatError("hdf5: dataset " + quote(entry.path) + " " + reason);
}

const DType& dtype_of(const Hdf5Entry& entry) {
  const DType* dtype = dtype_by_name(entry.dtype);
  if (dtype == nullptr) fail(entry, "has elements of type " + quote(entry.dtype));
  return *dtype;
}

std::uint64_t nbytes_of(const Hdf5Entry& entry) {
  auto nbytes = static_cast<std::int64_t>(dtype_of(entry).size);
  for (const std::int64_t n : entry.shape) {
    if (n < 0 || __builtin_mul_overflow(nbytes, n, &nbytes)) fail(entry, "has a shape that overflows");
  }
  return static_cast<std::uint64_t>(nbytes);
}

bool is_bytes(const Hdf5Entry& entry) { return dtype_of(entry).size == 1 && entry.shape.size() == 1; }

std::string_view parent_of(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

// Bytes in other files. A checkpoint does not decide which other files are opened, so none is.
class RefusedBytes final : public ExternalBytes {
 public:
  explicit RefusedBytes(const Hdf5Entry& entry)
      : ExternalBytes(entry.refusal), error_("hdf5: dataset " + quote(entry.path) + " " + entry.refusal) {}

  void require_readable() const override { throw UnsupportedError(error_); }
  Region read() const override { throw UnsupportedError(error_); }

 private:
  std::string error_;
};

// Concatenates all names, so the document's budget is in proportion to them.
Region text_of(const Hdf5Listing& listing) {
  std::size_t size = 0;
  for (const Hdf5Entry& entry : listing) size += entry.path.size();
  Region text = Region::allocate(size);
  std::byte* at = text.data();
  for (const Hdf5Entry& entry : listing) {
    at = std::copy_n(ByteSpan(entry.path).data(), entry.path.size(), at);
  }
  return text;
}

}  // namespace

Hdf5Archive::Hdf5Archive(Content content, Hdf5Listing listing)
    : Archive(std::move(content)), listing_(std::move(listing)), by_path_(listing_.size()) {
  const auto is_left_out = [](const Hdf5Entry& entry) { return !entry.is_group && entry.dtype.empty(); };
  const auto begin = std::ranges::find_if(listing_, is_left_out);
  for (auto at = begin; at != listing_.end(); ++at) {
    std::ranges::replace(at->path, '/', '.');
    left_out_.push_back({std::move(at->path), std::move(at->refusal)});
  }
  listing_.erase(begin, listing_.end());
  for (std::size_t i = 0; i < listing_.size(); ++i) {
    Hdf5Entry& entry = listing_[i];
    if (!by_path_.insert(entry.path, i).second) throw FormatError("hdf5: " + quote(entry.path) + " twice");
    if (!entry.refusal.empty()) entry.external = std::make_shared<const RefusedBytes>(entry);
    if (entry.is_group || !entry.offset) continue;
    const Extent extent{*entry.offset, nbytes_of(entry)};
    if (!extent.fits(content_.source()->size())) fail(entry, "runs past the end of the file");
  }
  require_apart();
  find_pickle();
  if (pickle_ == nullptr) return;
  content_.set_big_endian(read_byteorder());
  if (const Hdf5Entry* table = find(kTable)) check_table(*table);
}

// Checks that datasets do not overlap: HDF5 gives each dataset its own bytes.
void Hdf5Archive::require_apart() const {
  std::vector<std::pair<Extent, const Hdf5Entry*>> extents;
  for (const Hdf5Entry& entry : listing_) {
    if (entry.is_group || !entry.offset || entry.same_as) continue;
    const Extent extent{*entry.offset, nbytes_of(entry)};
    if (extent.size != 0) extents.emplace_back(extent, &entry);
  }
  std::ranges::sort(extents, {}, [](const auto& pair) { return pair.first.offset; });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    const auto& [before, first] = extents[i - 1];
    if (before.size > extents[i].first.offset - before.offset) {
      fail(*first, "overlaps dataset " + quote(extents[i].second->path));
    }
  }
}

void Hdf5Archive::find_pickle() {
  for (const Hdf5Entry& entry : listing_) {
    const std::string_view group = parent_of(entry.path);
    const bool is_pickle = entry.path.substr(group.size() + 1) == kPickle;
    if (entry.is_group || group.empty() || !is_pickle || !parent_of(group).empty()) continue;
    if (group.find('/') != std::string_view::npos) continue;
    if (pickle_ != nullptr) throw FormatError("hdf5: two datasets " + quote(kPickle));
    pickle_ = &entry;
    storages_ = std::string(group) + "/data/";
  }
  if (pickle_ == nullptr && find(kTable) != nullptr) {
    throw FormatError("hdf5: found " + quote(kTable) + ", but 'archive/data.pkl' is missing");
  }
}

const Hdf5Entry* Hdf5Archive::find(std::string_view path) const {
  const auto* found = by_path_.find(path);
  if (found == nullptr || listing_[found->value].is_group) return nullptr;
  return &listing_[found->value];
}

bool Hdf5Archive::read_byteorder() const {
  const Hdf5Entry* entry = find(std::string(parent_of(pickle_->path)) + "/byteorder");
  if (entry == nullptr) return false;
  if (!is_bytes(*entry)) fail(*entry, "does not consist of bytes");
  const Region order = bytes_of(*entry, kMaxText);
  if (order.bytes().text() == "big") return true;
  if (order.bytes().text() == "little") return false;
  throw FormatError("checkpoint: byte order " + quote(order.bytes().text()));
}

// Checks that the table has one row per storage, and agrees with HDF5.
void Hdf5Archive::check_table(const Hdf5Entry& table) const {
  if (table.dtype != "int64" || table.shape.size() != 2 || table.shape[1] != 3) {
    fail(table, "is not an int64 table of three columns");
  }
  const auto storages = static_cast<std::size_t>(std::ranges::count_if(listing_, [&](const Hdf5Entry& entry) {
    return !entry.is_group && entry.path.starts_with(storages_);
  }));
  const auto count = static_cast<std::size_t>(table.shape[0]);
  if (count != storages) {
    fail(table, "has " + std::to_string(count) + " rows, for " + std::to_string(storages) + " storages");
  }
  const Region bytes = bytes_of(table, count * sizeof(Row));
  std::vector<bool> seen(listing_.size());
  std::string path = storages_;
  for (std::size_t i = 0; i < count; ++i) {
    Row row;
    std::memcpy(row.data(), bytes.data() + i * sizeof(Row), sizeof(Row));
    path.replace(storages_.size(), std::string::npos, std::to_string(row[0]));
    const Hdf5Entry* entry = find(path);
    const bool agrees = entry != nullptr && entry->offset && row[1] >= 0 && row[2] >= 0 &&
                        static_cast<std::uint64_t>(row[1]) == *entry->offset &&
                        static_cast<std::uint64_t>(row[2]) == nbytes_of(*entry);
    if (!agrees) {
      fail(table, "does not agree with HDF5 on where " + quote(path) + " is; was the file rewritten since?");
    }
    const auto place = static_cast<std::size_t>(entry - listing_.data());
    if (seen[place]) fail(table, "has " + quote(path) + " twice");
    seen[place] = true;
  }
}

// NOLINTNEXTLINE(readability-convert-member-functions-to-static): it may come to need the file
Record Hdf5Archive::record_of(const Hdf5Entry& entry) const {
  const std::uint64_t nbytes = nbytes_of(entry);
  if (entry.offset) {
    return {
        .name = entry.path, .extent = {*entry.offset, nbytes}, .encoding = Encoding::stored, .size = nbytes};
  }
  if (entry.external == nullptr) fail(entry, "has no bytes");
  return {.name = entry.path,
          .extent = {},
          .encoding = Encoding::external,
          .size = nbytes,
          .external = entry.external.get()};
}

Region Hdf5Archive::bytes_of(const Hdf5Entry& entry, std::uint64_t most) const {
  const Record record = record_of(entry);
  if (record.size > most) fail(entry, "is too long");
  return content_.read(record);
}

Region Hdf5Archive::pickle() const {
  if (pickle_ == nullptr) throw UnsupportedError("checkpoint: this HDF5 file has no pickle");
  if (!is_bytes(*pickle_)) fail(*pickle_, "does not consist of bytes");
  return bytes_of(*pickle_, kMaxPickle);
}

Document Hdf5Archive::document(bool stubs) const {
  return pickle_ == nullptr ? tree() : read_pickle(pickle(), {.stubs = stubs});
}

Document Hdf5Archive::tree() const {
  Document document(text_of(listing_));
  std::map<std::string_view, Mapping*> groups{{"", &document.make<Mapping>(Kind::dict)}};
  document.root = Value::of(*groups[""]);
  std::vector<const Storage*> storages(listing_.size());  // of each entry that is a dataset
  for (std::size_t i = 0; i < listing_.size(); ++i) {
    const Hdf5Entry& entry = listing_[i];
    const std::string_view parent = parent_of(entry.path);
    const auto group = groups.find(parent);
    if (group == groups.end()) throw FormatError("hdf5: " + quote(entry.path) + " has no group");
    Value value;
    if (entry.is_group) {
      auto& made = document.make<Mapping>(Kind::dict);
      groups[entry.path] = &made;
      value = Value::of(made);
    } else {
      storages[i] = entry.same_as && *entry.same_as < i ? storages[*entry.same_as] : nullptr;
      if (storages[i] == nullptr) {
        storages[i] = &add_storage(document, entry.path, dtype_of(entry), nbytes_of(entry));
      }
      value = add_tensor(document, *storages[i], entry.shape, "hdf5: dataset");
    }
    const Value name = add_text(document, entry.path.substr(parent.empty() ? 0 : parent.size() + 1));
    group->second->items.push_back(document.arena(), {name, value});
  }
  return document;
}

std::vector<Record> Hdf5Archive::records(std::span<const StorageRequest> storages) {
  std::vector<Record> records;
  records.reserve(storages.size());
  std::string path = storages_;
  for (const StorageRequest& storage : storages) {
    path.replace(storages_.size(), std::string::npos, storage.key);
    const Hdf5Entry* entry = find(path);
    if (entry == nullptr) throw FormatError("hdf5: dataset " + quote(path) + " is missing");
    records.push_back(record_of(*entry));
    if (records.back().size != storage.nbytes) {
      fail(*entry, "holds " + std::to_string(records.back().size) + " bytes, its storage needs " +
                       std::to_string(storage.nbytes));
    }
  }
  return records;
}

}  // namespace zerocopy
