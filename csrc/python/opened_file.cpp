#include "python/opened_file.h"

#include <pybind11/pybind11.h>

#include <utility>

#include "io/direct.h"
#include "io/read_ahead.h"
#include "io/windows.h"

namespace zerocopy {
namespace {

std::shared_ptr<Mapper> map_whole(const File& file, std::uint64_t start, Mode mode, bool ahead,
                                  const TransferOptions& options) {
  Region whole = map_file(file, start, mode);
  // Advises before the first page is read, so the page cache uses large pages, for all later
  // mappings. Shared mappings get no advice, since they are written to.
  if (mode != Mode::shared) advise(whole.bytes(), Advice::huge);
  if (ahead) read_ahead(file, start, whole, options);
  return WholeMapper::of(std::move(whole));
}

}  // namespace

ReadStrategy parse_strategy(const std::string& name) {
  if (name == "whole") return ReadStrategy::whole;
  if (name == "ahead") return ReadStrategy::ahead;
  if (name == "windows") return ReadStrategy::windows;
  if (name == "pread") return ReadStrategy::pread;
  if (name == "direct") return ReadStrategy::direct;
  throw pybind11::value_error("unknown strategy '" + name +
                              "': expected whole, ahead, windows, pread or direct");
}

OpenedFile::OpenedFile(File file, std::uint64_t start, Mode mode, ReadStrategy strategy,
                       const TransferOptions& options) {
  if (strategy == ReadStrategy::direct) {
    source = std::make_shared<const DirectSource>(std::move(file), start, options);
    return;
  }
  auto sparing = std::make_shared<const CacheSparingSource>(std::move(file), start, options);
  const std::shared_ptr<const File> shared(sparing, &sparing->file());
  source = std::move(sparing);
  if (strategy == ReadStrategy::windows) {
    mapping = std::make_shared<WindowMapper>(shared, start, mode);
  } else if (strategy != ReadStrategy::pread) {
    mapping = map_whole(*shared, start, mode, strategy == ReadStrategy::ahead, options);
  }
}

}  // namespace zerocopy
