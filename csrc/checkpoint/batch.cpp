#include "checkpoint/batch.h"

#include <algorithm>
#include <numeric>

#include "memory/pages.h"

namespace zerocopy {
namespace {

constexpr std::uint64_t kMaxShared = kRequest;
constexpr std::uint64_t kMaxGap = std::uint64_t{16} << 10U;  // for a header, padding, or an unused record

// Neighbouring records that are read together: a range of the sorted order.
struct Run {
  Extent extent;
  std::size_t first;
  std::size_t count;
};

bool keeps_alignment(const RecordRead& record_read) {
  return record_read.extent.offset % record_read.alignment == 0;
}

bool joins(const Run& run, const RecordRead& record_read) {
  const std::uint64_t end = run.extent.offset + run.extent.size;
  return record_read.extent.offset >= end && record_read.extent.offset - end <= kMaxGap &&
         record_read.extent.offset - run.extent.offset + record_read.extent.size <= kMaxShared;
}

// A record that is not aligned in the file starts a run of its own, at aligned memory.
std::vector<Run> runs_of(std::span<const RecordRead> record_reads, std::span<const std::size_t> order) {
  std::vector<Run> runs;
  bool open = false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RecordRead& record_read = record_reads[order[i]];
    const bool alike = keeps_alignment(record_read);
    if (open && alike && joins(runs.back(), record_read)) {
      Run& run = runs.back();
      run.extent.size = record_read.extent.offset - run.extent.offset + record_read.extent.size;
      ++run.count;
    } else {
      runs.push_back({record_read.extent, i, 1});
    }
    open = alike;
  }
  return runs;
}

}  // namespace

std::vector<Region> read_batch(const Source& source, std::span<const RecordRead> record_reads) {
  std::vector<std::size_t> order(record_reads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const RecordRead& record_read : record_reads) {
    if (!record_read.extent.fits(source.size())) throw FormatError("a record exceeds the file");
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return record_reads[i].extent.offset; });
  std::vector<Region> regions(record_reads.size());
  std::vector<Piece> pieces;
  for (const Run& run : runs_of(record_reads, order)) {
    const RecordRead& first = record_reads[order[run.first]];
    const bool alike = keeps_alignment(first);
    const auto size = static_cast<std::size_t>(run.extent.size);
    const Region memory = alike ? allocate_pages(size, run.extent.offset) : allocate_pages(size, 0);
    pieces.push_back({run.extent, memory.data()});
    for (std::size_t i = run.first; i < run.first + run.count; ++i) {
      const Extent& extent = record_reads[order[i]].extent;
      regions[order[i]] = memory.slice({extent.offset - run.extent.offset, extent.size});
    }
  }
  source.read(pieces);
  return regions;
}

}  // namespace zerocopy
