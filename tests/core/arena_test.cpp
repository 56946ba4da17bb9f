#include "memory/arena.h"

#include "support.h"

namespace zerocopy::test::arena_test {
namespace {

TEST(Arena, AllocationsAreApartAndAligned) {
  Arena arena;
  std::vector<std::pair<char*, std::size_t>> made;
  for (std::size_t i = 0; i < 10'000; ++i) {
    const std::size_t size = i % 97;
    const std::size_t alignment = std::size_t{1} << (i % 5);
    auto* place = static_cast<char*>(arena.allocate(size, alignment));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % alignment, 0U);
    if (size != 0) std::memset(place, static_cast<int>(i % 251), size);
    made.emplace_back(place, size);
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    for (std::size_t k = 0; k < made[i].second; ++k) ASSERT_EQ(made[i].first[k], static_cast<char>(i % 251));
  }
}

TEST(Arena, AlignsTheFirstOfABlock) {
  Arena arena;
  arena.allocate(1, 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.allocate(16'000, 16)) % 16, 0U);
  }
}

// Needs more than 64 blocks: their sizes must stop doubling.
TEST(Arena, HoldsManyMegabytes) {
  Arena arena;
  for (int i = 0; i < 3000; ++i) std::memset(arena.allocate(100'000, 8), i, 100'000);
}

}  // namespace
}  // namespace zerocopy::test::arena_test
