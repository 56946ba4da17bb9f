// A .safetensors file: its header, its document, and the memory of its storages.
#include "checkpoint/safetensors_archive.h"
#include "fuzz.h"
#include "records_check.h"
#include "text/name_table.h"

namespace zerocopy::fuzz {
namespace {

void check_names(const std::vector<SafetensorsEntry>& entries) {
  NameTable<NameHash> names(entries.size());
  for (const SafetensorsEntry& entry : entries) check(names.insert(entry.name, 0).second, "names differ");
}

// Checks that each byte after the header belongs to one tensor.
void check_layout(const std::vector<SafetensorsEntry>& entries, std::uint64_t begin, std::uint64_t end) {
  for (const SafetensorsEntry& entry : entries) {
    check(entry.extent.offset == begin, "tensors lie one behind the other");
    begin += entry.extent.size;
  }
  check(begin == end, "nothing is left over");
}

void run(const Region& file) {
  const auto source = std::make_shared<const MemorySource>(file);
  const TimeLimit time(file.size());
  const MemoryLimit memory(kMiB + 128 * file.size());
  succeeds([&] {
    const SafetensorsHeader header(*source);
    check_names(header.entries());
    check_layout(header.entries(), 8 + header.text().size(), file.size());
    SafetensorsArchive archive(Content(source, WholeMapper::of(file), Mode::copy_on_write));
    check_tensors(archive, file.size());
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::region_of(data, size));
  return 0;
}
