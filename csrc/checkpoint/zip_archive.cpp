#include "checkpoint/zip_archive.h"

#include <charconv>

#include "container/checksum.h"

namespace zerocopy {
namespace {

// Reading a local header takes 0.5 us and starting a thread 30 us, while the machine runs in
// parallel.
constexpr std::size_t kMinThreadedRecords = 100;

constexpr std::uint64_t kMaxRead = std::uint64_t{1} << 30U;
// Bounds for deflated content: this size, plus this multiple of its stored bytes. Pickles deflate
// to a tenth.
constexpr std::uint64_t kMaxInflated = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMaxInflation = 64;
constexpr std::uint64_t kMaxSmallRecord = 64;  // for version and byteorder
constexpr std::uint64_t kMaxVersionDigits = 20;
constexpr std::uint64_t kMaxVersion = 10;  // kMaxSupportedFileFormatVersion of torch 1.13 to 2.14

[[noreturn]] void refuse_program() {
  throw UnsupportedError("checkpoint: this is a program saved by torch.export; torch.export.load reads it");
}

std::string_view trimmed(std::string_view text) {
  const auto last = text.find_last_not_of(" \n");
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace

ZipArchive::ZipArchive(Content content, Zip directory)
    : ZipArchive(OfOther(), std::move(content), std::move(directory)) {
  check_version();
  content_.set_big_endian(read_byteorder());
}

void ZipArchive::begin_records() const {
  std::call_once(begun_, [this] {
    // With both policies, all_records() reads the headers itself if no thread can start.
    const auto policy = zip_.count() < kMinThreadedRecords ? std::launch::deferred
                                                           : std::launch::async | std::launch::deferred;
    records_ = std::async(policy, [this] {
                 zip_.expect_local_headers();
                 std::vector<Record> records;
                 records.reserve(zip_.count());
                 for (std::size_t i = 0; i < zip_.count(); ++i) records.push_back(zip_.record(i));
                 return records;
               }).share();
  });
}

const std::vector<Record>& ZipArchive::all_records() const {
  begin_records();
  return records_.get();
}

void ZipArchive::check_version() const {
  const auto record = find("version");
  if (!record && zip_.contains(".data/version") && zip_.contains(".data/extern_modules")) {
    throw UnsupportedError("checkpoint: this is a torch.package; torch.package.PackageImporter loads it");
  }
  if (!record && is_program()) refuse_program();
  if (!record) zip_.fail_as_other("checkpoint: record 'version' is missing");
  const std::string content = read_text(*record);
  const std::string_view digits = trimmed(content);
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  const bool numeric = error != std::errc::invalid_argument && end == digits.data() + digits.size();
  if (digits.size() > kMaxVersionDigits || !numeric || (error == std::errc() && version == 0)) {
    throw FormatError("checkpoint: version " + quote(digits) + " is not a number");
  }
  if (error == std::errc::result_out_of_range || version > kMaxVersion) {
    throw UnsupportedError("checkpoint: file format version " + quote(digits) +
                           ", newer than 10, the newest that zerocopy knows");
  }
}

bool ZipArchive::read_byteorder() const {
  const auto record = find("byteorder");
  if (!record) return false;
  const std::string order = read_text(*record);
  if (order != "little" && order != "big") {
    throw FormatError("checkpoint: byte order " + quote(order));
  }
  return order == "big";
}

std::string ZipArchive::read_text(std::size_t record) const {
  if (zip_.size(record) > kMaxSmallRecord) {
    throw FormatError("checkpoint: record " + quote(zip_.name(record)) + " is too long");
  }
  return std::string(content_.read(zip_.record(record)).bytes().text());
}

// Returns whether torch.export of a release before 2.8 wrote the archive. That of later ones is a
// ProgramArchive.
bool ZipArchive::is_program() const { return zip_.contains("serialized_exported_program.json"); }

std::size_t ZipArchive::pickle_record() const {
  if (const auto record = find("data.pkl")) return *record;
  if (is_program()) refuse_program();
  // torch.save pickles before it writes the storages. If that fails, it still ends the archive.
  bool has_storages = false;
  for (std::size_t i = 0; i < zip_.count(); ++i) has_storages |= zip_.name(i).starts_with("data/");
  const char* why = has_storages ? "" : ": the save did not finish";
  throw FormatError(std::string("checkpoint: record 'data.pkl' is missing") + why);
}

Region ZipArchive::pickle() const { return read(pickle_record()); }

Region ZipArchive::read(std::size_t record) const {
  const std::uint64_t size = zip_.size(record);
  const std::uint64_t stored = zip_.stored_size(record);
  const std::string name = "record " + quote(zip_.name(record));
  if (size > kMaxRead) throw FormatError("checkpoint: " + name + " of more than 1 GiB");
  if (size > stored && size > kMaxInflated + kMaxInflation * stored) {
    throw FormatError("checkpoint: " + name + " of " + std::to_string(size) + " bytes is deflated to " +
                      std::to_string(stored));
  }
  return content_.read(zip_.record(record));
}

Document ZipArchive::document(bool stubs) const {
  return read_pickle(
      pickle(),
      {.stored = zip_.stored_size(pickle_record()), .stubs = stubs, .fixed_budget = content_.fixed_budget()});
}

void ZipArchive::require_undamaged_pickle() const {
  const std::size_t record = pickle_record();
  const std::uint32_t recorded = zip_.crc(record);  // 0: not recorded
  if (recorded == 0 || crc32(0, read(record).bytes()) == recorded) return;
  throw FormatError("checkpoint: record " + quote(zip_.name(record)) +
                    " is damaged: its CRC-32 is not the one in the archive");
}

std::vector<Record> ZipArchive::records_in(std::string_view folder,
                                           std::span<const StorageRequest> storages) const {
  const std::vector<std::size_t> found = find_storages(folder, storages);
  const std::vector<Record>& all = all_records();
  std::vector<Record> records;
  records.reserve(found.size());
  for (const std::size_t i : found) records.push_back(all[i]);
  return records;
}

StorageRecords ZipArchive::found_in(std::string_view folder, std::span<const StorageRequest> storages) const {
  std::vector<std::size_t> found = find_storages(folder, storages);
  std::vector<bool> checked_later(zip_.count());
  for (const std::size_t i : found) checked_later[i] = true;
  // No tensor will ask for the other records, which are few.
  for (std::size_t i = 0; i < zip_.count(); ++i) {
    if (!checked_later[i]) zip_.record(i);
  }
  return {zip_, std::move(found)};
}

std::vector<std::size_t> ZipArchive::find_storages(std::string_view folder,
                                                   std::span<const StorageRequest> storages) const {
  std::vector<std::size_t> found;
  found.reserve(storages.size());
  for (const StorageRequest& storage : storages) found.push_back(find_storage(folder, storage));
  return found;
}

std::size_t ZipArchive::find_storage(std::string_view folder, const StorageRequest& storage) const {
  std::string name(folder);
  name += storage.key;
  const auto record = find(name);
  if (!record) throw FormatError("checkpoint: record " + quote(name) + " is missing");
  const std::uint64_t size = zip_.size(*record);
  if (size != storage.nbytes) {
    throw FormatError("checkpoint: record " + quote(name) + " holds " + std::to_string(size) +
                      " bytes, its storage needs " + std::to_string(storage.nbytes));
  }
  return *record;
}

}  // namespace zerocopy
