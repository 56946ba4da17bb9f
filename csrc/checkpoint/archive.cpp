#include "checkpoint/archive.h"

#include <algorithm>
#include <charconv>

#include "container/inflate.h"

namespace zerocopy {
namespace {

// A local header takes half a microsecond, a thread thirty; the machine has as much to do meanwhile.
constexpr std::size_t kWorthAThread = 100;

constexpr std::uint64_t kMaxPickle = std::uint64_t{1} << 30U;
constexpr std::uint64_t kMaxSmallRecord = 64;  // version and byteorder
constexpr std::uint64_t kMaxVersionDigits = 20;
constexpr std::uint64_t kMaxVersion = 10;  // kMaxSupportedFileFormatVersion of torch 1.13 to 2.14

// A typed pointer into bytes of unknown type has to suit the widest element.
constexpr std::uint64_t kWidestElement = 16;

void reverse_units(const Region& bytes, std::size_t unit) {
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
    std::reverse(bytes.data() + at, bytes.data() + at + unit);
  }
}

std::string_view trimmed(std::string_view text) {
  const auto last = text.find_last_not_of(" \n");
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace

Archive::Archive(std::shared_ptr<const Source> source, Region mapping, Mode mode)
    : source_(std::move(source)), mapping_(std::move(mapping)), mode_(mode), zip_(source_) {
  // With both policies a thread that cannot be had makes the call wait for records() instead.
  const auto policy =
      zip_.size() < kWorthAThread ? std::launch::deferred : std::launch::async | std::launch::deferred;
  records_ = std::async(policy, [this] {
               std::vector<Record> records;
               records.reserve(zip_.size());
               for (std::size_t i = 0; i < zip_.size(); ++i) records.push_back(zip_.record(i));
               return records;
             }).share();
  check_version();
  read_byteorder();
}

const std::vector<Record>& Archive::wait_for_records() const {
  const std::vector<Record>& records = records_.get();
  checked_.store(&records, std::memory_order_release);
  return records;
}

void Archive::check_version() const {
  const auto record = find("version");
  if (!record) throw FormatError("checkpoint: record 'version' is missing");
  const std::string content = read_text(*record);
  const std::string_view digits = trimmed(content);
  std::uint64_t version = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  const bool numeric = error != std::errc::invalid_argument && end == digits.data() + digits.size();
  if (digits.size() > kMaxVersionDigits || !numeric || (error == std::errc() && version == 0)) {
    throw FormatError("checkpoint: version " + quote(digits) + " is no version");
  }
  if (error == std::errc::result_out_of_range || version > kMaxVersion) {
    throw UnsupportedError("checkpoint: file format version " + quote(digits) + ", newer than 10");
  }
}

void Archive::read_byteorder() {
  const auto record = find("byteorder");
  if (!record) return;
  const std::string order = read_text(*record);
  if (order != "little" && order != "big") {
    throw FormatError("checkpoint: byte order " + quote(order));
  }
  big_endian_ = order == "big";
}

std::string Archive::read_text(std::size_t record) const {
  if (zip_.inflated_size(record) > kMaxSmallRecord) {
    throw FormatError("checkpoint: record " + quote(name(record)) + " is too long");
  }
  return std::string(read(record).bytes().text());
}

Region Archive::read(const Record& record) const {
  if (record.encoding == Encoding::deflated) return inflate(*source_, record.extent, record.size);
  return source_->read(record.extent);
}

Region Archive::pickle() const {
  const auto record = find("data.pkl");
  if (!record) throw FormatError("checkpoint: record 'data.pkl' is missing");
  if (zip_.inflated_size(*record) > kMaxPickle) throw FormatError("checkpoint: data.pkl of more than 1 GiB");
  return read(*record);
}

std::size_t Archive::storage_record(std::string_view key, std::uint64_t nbytes) const {
  std::string name("data/");
  name += key;
  const auto record = find(name);
  if (!record) throw FormatError("checkpoint: record " + quote(name) + " is missing");
  const std::uint64_t size = zip_.inflated_size(*record);
  if (size != nbytes) {
    throw FormatError("checkpoint: record " + quote(name) + " holds " + std::to_string(size) +
                      " bytes, its storage needs " + std::to_string(nbytes));
  }
  return *record;
}

Placement Archive::placement(std::size_t record, const DType& dtype) const {
  using enum Placement::How;
  const Record& wanted = records()[record];
  if (wanted.encoding == Encoding::deflated) return {inflated, "the record is deflated"};
  if (big_endian_ && dtype.swap > 1) return {copied, "the file is big-endian"};
  if (mapping_.data() == nullptr) return {copied, "the file is read, not mapped"};
  const std::uint64_t alignment = &dtype == untyped() ? kWidestElement : dtype.size;
  // NOLINTNEXTLINE(*-reinterpret-cast): an address, to see its alignment
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_.data()) + wanted.extent.offset;
  if (address % alignment != 0) return {copied, "the record is not aligned for its elements"};
  return {mapped, ""};
}

Region Archive::storage(std::size_t record, const DType& dtype) const {
  const auto [how, why] = placement(record, dtype);
  if (how == Placement::How::mapped) return mapping_.slice(records()[record].extent);
  if (mode_ == Mode::shared) {
    throw UnsupportedError("checkpoint: mode 'r+' cannot write to record " + quote(name(record)) + ": " +
                           why);
  }
  Region bytes = read(record);
  if (big_endian_ && dtype.swap > 1) reverse_units(bytes, dtype.swap);
  return bytes;
}

}  // namespace zerocopy
