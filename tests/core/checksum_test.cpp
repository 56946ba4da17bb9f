// CRC-32: the standard check value, also when computed in pieces.
#include "container/checksum.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

namespace zerocopy::test::checksum_test {
namespace {

TEST(Checksum, OfTheDigits) { EXPECT_EQ(crc32(0, ByteSpan(std::string_view("123456789"))), 0xCBF43926U); }

TEST(Checksum, OfNoBytesIsUnchanged) {
  EXPECT_EQ(crc32(0, {}), 0U);
  EXPECT_EQ(crc32(0x12345678U, {}), 0x12345678U);
}

TEST(Checksum, InPieces) {
  std::array<std::byte, 1000> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes.at(i) = static_cast<std::byte>(i * 7);
  const ByteSpan whole(bytes.data(), bytes.size());
  const std::uint32_t wanted = crc32(0, whole);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const std::uint32_t front = crc32(0, whole.subspan({0, cut}));
    EXPECT_EQ(crc32(front, whole.subspan({cut, bytes.size() - cut})), wanted) << cut;
  }
}

}  // namespace
}  // namespace zerocopy::test::checksum_test
