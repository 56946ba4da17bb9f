#include "memory/region.h"

#include <cstdint>

#include "support.h"

namespace zerocopy::test::region_test {
namespace {

class Counted final : public Owner {
 public:
  explicit Counted(int& alive) : alive_(alive) { ++alive_; }
  ~Counted() override { --alive_; }

 private:
  int& alive_;
};

TEST(Region, EmptyIsEmpty) {
  const Region region;
  EXPECT_EQ(region.data(), nullptr);
  EXPECT_EQ(region.size(), 0U);
  EXPECT_TRUE(region.bytes().empty());
  EXPECT_EQ(region.slice({0, 0}).size(), 0U);
  EXPECT_THROW(region.slice({0, 1}), FormatError);
}

TEST(Region, AllocatesAligned) {
  for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 4097U}) {
    const Region region = Region::allocate(size);
    EXPECT_EQ(region.size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % 64, 0U);
    if (size != 0) std::memset(region.data(), 1, size);
  }
}

TEST(Region, SlicesShareTheOwner) {
  int alive = 0;
  Region slice;
  {
    std::byte bytes[8] = {};
    const Region whole(bytes, 8, OwnerRef(new Counted(alive)));
    slice = whole.slice({2, 4});
    EXPECT_EQ(slice.data(), bytes + 2);
    EXPECT_EQ(slice.size(), 4U);
    EXPECT_THROW(whole.slice({2, 7}), FormatError);
    EXPECT_THROW(slice.slice({0, 5}), FormatError);
  }
  EXPECT_EQ(alive, 1);
  slice = Region();
  EXPECT_EQ(alive, 0);
}

TEST(OwnerRef, CountsCopiesAndMoves) {
  int alive = 0;
  OwnerRef first(new Counted(alive));
  OwnerRef second = first;
  OwnerRef third = std::move(first);
  second = third;
  second = std::move(third);
  EXPECT_EQ(alive, 1);
  const OwnerRef& same = second;
  second = same;
  EXPECT_EQ(alive, 1);
  Owner* released = second.release();
  EXPECT_EQ(alive, 1);
  { const OwnerRef adopted = OwnerRef::adopt(released); }
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace zerocopy::test::region_test
