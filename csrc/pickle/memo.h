// The pickle memo: values by index, in pages allocated at their first write.
//
// Indices come from the file, so five bytes could demand an array of gigabytes. Indices beyond
// `limit` (the pickle's length, since each entry takes a byte) are refused, unless they are small:
// a writer may begin at any number. Unused pages are not allocated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace zerocopy {

template <typename T>
class Memo {
 public:
  explicit Memo(std::uint64_t limit) : limit_(std::max(limit, kSmall)) {}

  // Returns false when the index is beyond the limit.
  [[nodiscard]] bool put(std::uint64_t index, const T& value) {
    if (index > limit_) return false;
    const auto number = static_cast<std::size_t>(index / kPage);
    if (number >= pages_.size()) pages_.resize(number + 1);
    if (!pages_[number]) pages_[number] = std::make_unique<Page>();
    Page& page = *pages_[number];
    if (!page.holds(index)) ++size_;
    page.used |= bit(index);
    page.values[index % kPage] = value;
    return true;
  }

  // MEMOIZE: the index is the number of entries so far.
  [[nodiscard]] bool append(const T& value) { return put(size_, value); }

  // Returns null if the index is unused.
  const T* get(std::uint64_t index) const {
    const std::uint64_t number = index / kPage;
    if (number >= pages_.size() || !pages_[number]) return nullptr;
    const Page& page = *pages_[number];
    return page.holds(index) ? &page.values[index % kPage] : nullptr;
  }

 private:
  static constexpr std::uint64_t kPage = 64;  // one bit each in `used`
  static constexpr std::uint64_t kSmall = 4096;

  static std::uint64_t bit(std::uint64_t index) { return std::uint64_t{1} << (index % kPage); }

  struct Page {
    bool holds(std::uint64_t index) const { return (used & bit(index)) != 0; }

    std::uint64_t used = 0;
    std::array<T, kPage> values{};
  };

  std::uint64_t limit_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::uint64_t size_ = 0;
};

}  // namespace zerocopy
