// The legacy format: its pickles, the list of keys, and the records of its storages.
#include "checkpoint/legacy_archive.h"
#include "document_check.h"
#include "fuzz.h"
#include "pickle/machine.h"
#include "records_check.h"

namespace zerocopy::fuzz {
namespace {

void run(const std::shared_ptr<const Source>& source) {
  const TimeLimit time(source->size());
  const MemoryLimit memory(kMiB + 256 * source->size());
  succeeds([&] {
    LegacyArchive archive(Content(source, nullptr, Mode::copy_on_write));
    const Region pickle = archive.pickle();
    check(pickle.size() <= source->size(), "the pickle lies inside the file");
    list_globals(pickle.bytes());
    succeeds([&] { archive.records({}); });
    const Document document = archive.document(false);
    check_document(document);
    const std::vector<StorageRequest> wanted = storage_requests(document);
    const std::vector<Record> records = archive.records(wanted);
    check_records(records, wanted, archive.end());
    check(archive.end() <= source->size(), "the checkpoint ends inside the file");
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::source_of(data, size));
  return 0;
}
