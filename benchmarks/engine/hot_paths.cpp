// Loads a checkpoint as often as asked, as far as the core goes: benchmarks/instructions.py counts
// the instructions of one load.
//
//   hot_paths FILE TIMES
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "checkpoint/archive.h"
#include "io/windows.h"

namespace {

using namespace zerocopy;

// The steps of zerocopy.load up to the storages. Returns the mapped bytes, so nothing is left out.
std::uint64_t load(const char* path) {
  File file = File::open(path, File::Access::read);
  auto mapping = WholeMapper::of(map_file(file, 0, Mode::copy_on_write));
  const auto source = std::make_shared<const FileSource>(std::move(file), 0);
  const auto archive = Archive::open(source, std::move(mapping), Mode::copy_on_write);
  const auto [document, records] = read_checkpoint(*archive);
  std::uint64_t nbytes = 0;
  for (const Storage* storage : document.storages) {
    nbytes += archive->content().storage(records[storage->index], *storage->element).size();
  }
  archive->content().require_unchanged();
  return nbytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: hot_paths FILE TIMES\n");
    return 2;
  }
  try {
    std::uint64_t nbytes = 0;
    for (int times = std::atoi(argv[2]); times > 0; --times) nbytes += load(argv[1]);
    std::printf("%llu\n", static_cast<unsigned long long>(nbytes));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hot_paths: %s\n", error.what());
    return 1;
  }
}
