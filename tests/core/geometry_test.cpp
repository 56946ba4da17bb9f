#include "pickle/geometry.h"

#include "support.h"

namespace zerocopy::test::geometry_test {
namespace {

using Numbers = std::vector<std::int64_t>;
constexpr std::int64_t kHuge = std::int64_t{1} << 62U;

bool fits(std::int64_t offset, const Numbers& size, const Numbers& stride, std::int64_t storage = 16,
          std::int64_t item = 4) {
  return why_not_a_view(storage, item, offset, size, stride).empty();
}

TEST(Geometry, Inside) {
  EXPECT_TRUE(fits(0, {16}, {1}));
  EXPECT_TRUE(fits(0, {}, {}));
  EXPECT_TRUE(fits(15, {}, {}));
  EXPECT_TRUE(fits(15, {1}, {100}));
  EXPECT_TRUE(fits(0, {4, 4}, {1, 4}));
  EXPECT_TRUE(fits(3, {5}, {3}));
  EXPECT_TRUE(fits(16, {0}, {1}));
  EXPECT_TRUE(fits(17, {0}, {1}));  // without elements it may begin anywhere
  EXPECT_TRUE(fits(INT64_MAX, {2, 0}, {kHuge, 1}));
  EXPECT_TRUE(fits(0, {0, 5}, {5, 1}));
  EXPECT_TRUE(fits(0, {1, 16}, {kHuge, 1}));
  EXPECT_TRUE(fits(0, {std::int64_t{1} << 36U}, {0}));
  EXPECT_TRUE(fits(0, Numbers(64, 1), Numbers(64, 1)));
  EXPECT_TRUE(fits(0, {0}, {1}, 0));
}

TEST(Geometry, PastTheEnd) {
  EXPECT_FALSE(fits(0, {17}, {1}));
  EXPECT_FALSE(fits(1, {16}, {1}));
  EXPECT_FALSE(fits(16, {}, {}));
  EXPECT_FALSE(fits(0, {2}, {16}));
  EXPECT_FALSE(fits(0, {}, {}, 0));
  EXPECT_FALSE(fits(1'000'000'000, {1}, {1}));
}

TEST(Geometry, Negative) {
  EXPECT_FALSE(fits(-1, {1}, {1}));
  EXPECT_FALSE(fits(15, {16}, {-1}));
  EXPECT_FALSE(fits(0, {-1}, {1}));
  EXPECT_FALSE(fits(0, {-4, -4}, {1, 1}));
  EXPECT_FALSE(fits(0, {1}, {-1}));
  EXPECT_FALSE(fits(INT64_MIN, {INT64_MIN}, {INT64_MIN}));
}

TEST(Geometry, Overflows) {
  EXPECT_FALSE(fits(0, {5}, {kHuge}));
  EXPECT_FALSE(fits(0, {2, 2, 2}, {kHuge, kHuge, kHuge}));
  EXPECT_FALSE(fits(0, {std::int64_t{1} << 32U, std::int64_t{1} << 32U}, {0, 0}));
  EXPECT_FALSE(fits(0, {kHuge}, {0}));  // the elements fit, the bytes do not
  EXPECT_FALSE(fits(0, {0, kHuge, kHuge}, {1, 1, 1}));
  EXPECT_FALSE(fits(INT64_MAX, {2}, {1}));
  EXPECT_FALSE(fits(0, {INT64_MAX}, {INT64_MAX}));
}

TEST(Geometry, Shapes) {
  EXPECT_FALSE(fits(0, {2, 2}, {1}));
  EXPECT_FALSE(fits(0, {}, {1}));
  EXPECT_FALSE(fits(0, Numbers(65, 1), Numbers(65, 1)));
  EXPECT_FALSE(fits(0, Numbers(100'000, 1), Numbers(100'000, 1)));
}

TEST(Geometry, ByteCount) {
  std::uint64_t nbytes = 0;
  EXPECT_TRUE(byte_count(16, 4, nbytes));
  EXPECT_EQ(nbytes, 64U);
  EXPECT_TRUE(byte_count(0, 16, nbytes));
  EXPECT_EQ(nbytes, 0U);
  EXPECT_FALSE(byte_count(-1, 4, nbytes));
  EXPECT_FALSE(byte_count(kHuge, 4, nbytes));
  EXPECT_FALSE(byte_count(kHuge + 4, 4, nbytes));  // wraps to 16
  EXPECT_FALSE(byte_count(INT64_MIN, 1, nbytes));
}

using Runs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Runs runs_of(const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride) {
  Runs runs;
  for_each_run(size, stride, 4, [&](Extent run) { runs.emplace_back(run.offset, run.size); });
  return runs;
}

TEST(Geometry, RunsOfAView) {
  EXPECT_EQ(runs_of({}, {}), (Runs{{0, 4}}));
  EXPECT_EQ(runs_of({2, 3}, {3, 1}), (Runs{{0, 24}}));
  EXPECT_EQ(runs_of({2, 3}, {10, 1}), (Runs{{0, 12}, {40, 12}}));
  EXPECT_EQ(runs_of({2, 2}, {1, 10}), (Runs{{0, 4}, {40, 4}, {4, 4}, {44, 4}}));
  EXPECT_EQ(runs_of({2, 1, 3}, {3, 99, 1}), (Runs{{0, 24}}));
  EXPECT_EQ(runs_of({2, 0}, {1, 1}), Runs{});
  EXPECT_EQ(runs_of({1000, 1000}, {5000, 5}), Runs{});  // too many runs
}

TEST(Geometry, SpanOfAView) {
  EXPECT_EQ(span_of(std::vector<std::int64_t>{}, std::vector<std::int64_t>{}), 1);
  EXPECT_EQ(span_of(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{10, 2}), 15);
  EXPECT_EQ(span_of(std::vector<std::int64_t>{2, 0}, std::vector<std::int64_t>{10, 2}), 0);
}

}  // namespace
}  // namespace zerocopy::test::geometry_test
