// Reads bytes to storages and tensors, for zip and legacy files.
#include <algorithm>

#include "checkpoint/archive.h"
#include "document_check.h"
#include "fuzz.h"
#include "pickle/machine.h"
#include "records_check.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::uint64_t kMaxData = 4 * kMiB;  // inflating more takes long and finds nothing new

bool inside(const Region& part, const Region& whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

// Makes each storage as the binding does.
void check_storages(const Archive& archive, const Document& document, const std::vector<Record>& records,
                    const Region& mapping) {
  std::uint64_t data = 0;
  for (const Storage* storage : document.storages) {
    const Record& record = records[storage->index];
    data += record.size;
    if (data > kMaxData) return;
    succeeds([&] {  // a deflated record may be broken
      const Region region = check_storage(archive.content(), *storage, record);
      if (archive.content().placement(record, *storage->element).how == Placement::How::mapped) {
        check(inside(region, mapping), "a mapped storage lies in the mapping");
      }
      volatile std::byte sum{};
      // Checks that all of it is readable.
      for (std::size_t i = 0; i < region.size(); ++i) sum = sum ^ region.data()[i];
    });
  }
}

void run(const Region& file, bool mapped) {
  const auto source = std::make_shared<const MemorySource>(file);
  // Records inflate at most 1032 to 1, which bounds the opcodes. pickle_fuzz.cpp bounds the
  // Document.
  const std::uint64_t inflated = 1032 * std::uint64_t{file.size()};
  const std::uint64_t opcodes = std::min(inflated, 1'000'000 + 64 * std::uint64_t{file.size()});
  const TimeLimit time(opcodes);
  const MemoryLimit memory(2 * kMiB + 128 * opcodes + 3 * inflated);
  succeeds([&] {
    const auto archive = Archive::open(source, mapped ? WholeMapper::of(file) : nullptr, Mode::copy_on_write);
    const Document document = archive->document();
    check_document(document);
    const std::vector<StorageRequest> wanted = storage_requests(document);
    const std::vector<Record> records = archive->records(wanted);
    check_records(records, wanted, archive->end());
    check(archive->end() <= file.size(), "the checkpoint ends inside the file");
    const StorageRecords found = archive->found_records(wanted);
    for (std::size_t i = 0; i < records.size(); ++i) {
      const Extent extent = found.at(i).extent;
      check(extent.offset == records[i].extent.offset && extent.size == records[i].extent.size,
            "a record is the same when it is checked later");
    }
    check_storages(*archive, document, records, file);
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace zerocopy::fuzz;  // NOLINT(google-build-using-namespace)
  const zerocopy::Region file = region_of(data, size);
  run(file, true);
  run(file, false);
  return 0;
}
