// The index of a zip archive: end records, directory, names, local headers.
#include "container/zip.h"
#include "fuzz.h"
#include "records_check.h"

namespace zerocopy::fuzz {
namespace {

void run(const std::shared_ptr<const Source>& source) {
  const TimeLimit time(source->size());
  const MemoryLimit memory(kMiB + 64 * source->size());
  succeeds([&] {
    const Zip zip(source);
    check(zip.count() != 0 && !zip.root().empty(), "records, all in one folder");
    std::vector<Extent> extents;
    bool all = true;
    for (std::size_t i = 0; i < zip.count(); ++i) {
      const std::string_view name = zip.name(i);
      const bool folder = name.empty() || name.back() == '/';
      check(zip.find(name) == (folder ? std::nullopt : std::optional(i)), "a record is found by its name");
      all = succeeds([&] {
              const Record record = zip.record(i);
              check(record.name == name && record.size == zip.size(i), "the directory's record");
              check(record.encoding == Encoding::deflated || record.size == record.extent.size,
                    "stored: of one size");
              extents.push_back(record.extent);
            }) &&
            all;
    }
    check_disjoint(std::move(extents), source->size());
    // If every header agrees, each record takes 30 + 46 bytes and its name twice, plus the end
    // record.
    if (all) check(source->size() >= 22 + 76 * zip.count(), "every record has its headers");
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::source_of(data, size));
  return 0;
}
