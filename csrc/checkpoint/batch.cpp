#include "checkpoint/batch.h"

#include <algorithm>
#include <numeric>

#include "memory/pages.h"

namespace zerocopy {
namespace {

constexpr std::uint64_t kLargestShared = kRequest;
constexpr std::uint64_t kLargestGap = std::uint64_t{16} << 10U;  // for a header, padding, or an unused record

// Neighbouring records that are read together: a range of the sorted order.
struct Run {
  Extent extent;
  std::size_t first;
  std::size_t count;
};

bool keeps_alignment(const Wish& wish) { return wish.extent.offset % wish.alignment == 0; }

bool joins(const Run& run, const Wish& wish) {
  const std::uint64_t end = run.extent.offset + run.extent.size;
  return wish.extent.offset >= end && wish.extent.offset - end <= kLargestGap &&
         wish.extent.offset - run.extent.offset + wish.extent.size <= kLargestShared;
}

// A record that is not aligned in the file starts a run of its own, at aligned memory.
std::vector<Run> runs_of(std::span<const Wish> wishes, std::span<const std::size_t> order) {
  std::vector<Run> runs;
  bool open = false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Wish& wish = wishes[order[i]];
    const bool alike = keeps_alignment(wish);
    if (open && alike && joins(runs.back(), wish)) {
      Run& run = runs.back();
      run.extent.size = wish.extent.offset - run.extent.offset + wish.extent.size;
      ++run.count;
    } else {
      runs.push_back({wish.extent, i, 1});
    }
    open = alike;
  }
  return runs;
}

}  // namespace

std::vector<Region> read_batch(const Source& source, std::span<const Wish> wishes) {
  std::vector<std::size_t> order(wishes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const Wish& wish : wishes) {
    if (!wish.extent.fits(source.size())) throw FormatError("a record exceeds the file");
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return wishes[i].extent.offset; });
  std::vector<Region> regions(wishes.size());
  std::vector<Piece> pieces;
  for (const Run& run : runs_of(wishes, order)) {
    const Wish& first = wishes[order[run.first]];
    const bool alike = keeps_alignment(first);
    const auto size = static_cast<std::size_t>(run.extent.size);
    const Region memory = alike ? allocate_pages(size, run.extent.offset) : allocate_pages(size, 0);
    pieces.push_back({run.extent, memory.data()});
    for (std::size_t i = run.first; i < run.first + run.count; ++i) {
      const Extent& extent = wishes[order[i]].extent;
      regions[order[i]] = memory.slice({extent.offset - run.extent.offset, extent.size});
    }
  }
  source.read(pieces);
  return regions;
}

}  // namespace zerocopy
