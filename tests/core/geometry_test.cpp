#include "pickle/geometry.h"

#include "support.h"

namespace zerocopy::test::geometry_test {
namespace {

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
