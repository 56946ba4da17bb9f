// An HDF5 file: the reader of plain files, and the checkpoint built on its listing.
#include <map>

#include "checkpoint/hdf5_archive.h"
#include "fuzz.h"
#include "records_check.h"

namespace zerocopy::fuzz {
namespace {

// Checks that groups precede their members, and that the bytes of datasets lie in the file.
void check_listing(const Hdf5Listing& listing, std::uint64_t size) {
  std::map<std::string_view, bool> is_group{{"", true}};
  for (const Hdf5Entry& entry : listing) {
    const std::string_view path = entry.path;
    const std::size_t slash = path.rfind('/');
    const auto parent = is_group.find(slash == path.npos ? "" : path.substr(0, slash));
    check(parent != is_group.end() && parent->second, "an entry lies in a group that came before it");
    check(slash + 1 != path.size() && path.find('\0') == path.npos, "an entry has a name");
    check(is_group.emplace(path, entry.is_group).second, "names differ");
    if (entry.is_group) continue;
    check(dtype_by_name(entry.dtype) != nullptr, "a dataset has a type of torch's");
    check(entry.offset && *entry.offset < size, "a plain dataset lies in the file");
    check(!entry.external && entry.refusal.empty() && !entry.same_as, "and nowhere else");
  }
}

void check_archive(const std::shared_ptr<const Source>& source, const Region& file, Hdf5Listing listing) {
  Hdf5Archive archive(Content(source, WholeMapper::of(file), Mode::copy_on_write), std::move(listing));
  check(archive.end() == file.size(), "it is all of the file");
  check_tensors(archive, file.size());
}

void run(const Region& file) {
  const auto source = std::make_shared<const MemorySource>(file);
  const TimeLimit time(file.size());
  const MemoryLimit memory(kMiB / 2 + 128 * file.size());
  std::optional<Hdf5Listing> listing = list_plain_hdf5(*source);  // never throws
  if (!listing) return;
  check(is_hdf5(*source), "what is plain HDF5 is HDF5");
  succeeds([&] {
    check_listing(*listing, file.size());
    check_archive(source, file, *std::move(listing));
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::region_of(data, size));
  return 0;
}
