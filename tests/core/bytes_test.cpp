#include "memory/bytes.h"

#include <limits>

#include "memory/cursor.h"
#include "support.h"

namespace zerocopy::test::bytes_test {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Extent, FitsWithoutWrapping) {
  EXPECT_TRUE((Extent{0, 0}.fits(0)));
  EXPECT_TRUE((Extent{10, 0}.fits(10)));
  EXPECT_TRUE((Extent{3, 7}.fits(10)));
  EXPECT_FALSE((Extent{3, 8}.fits(10)));
  EXPECT_FALSE((Extent{11, 0}.fits(10)));
  EXPECT_FALSE((Extent{5, kMax}.fits(10)));
  EXPECT_FALSE((Extent{kMax, 5}.fits(10)));
  EXPECT_FALSE((Extent{kMax, kMax}.fits(kMax - 1)));
  EXPECT_TRUE((Extent{0, kMax}.fits(kMax)));
}

TEST(ByteSpan, SubspanStaysInside) {
  const ByteSpan bytes("abcdef"sv);
  EXPECT_EQ(bytes.subspan({2, 3}).text(), "cde");
  EXPECT_EQ(bytes.subspan({6, 0}).size(), 0U);
  EXPECT_THROW(bytes.subspan({6, 1}), FormatError);
  EXPECT_THROW(bytes.subspan({7, 0}), FormatError);
  EXPECT_THROW(bytes.subspan({2, kMax}), FormatError);
  EXPECT_TRUE(ByteSpan().subspan({0, 0}).empty());
}

TEST(Cursor, ReadsLittleEndian) {
  Cursor cursor(ByteSpan("\1\2\0\3\0\0\0\4\0\0\0\0\0\0\0x"sv), "test");
  EXPECT_EQ(cursor.read<std::uint8_t>(), 1U);
  EXPECT_EQ(cursor.read<std::uint16_t>(), 2U);
  EXPECT_EQ(cursor.read<std::uint32_t>(), 3U);
  EXPECT_EQ(cursor.read<std::uint64_t>(), 4U);
  EXPECT_EQ(cursor.offset(), 15U);
  EXPECT_EQ(cursor.take(1).text(), "x");
  EXPECT_EQ(cursor.remaining(), 0U);
}

TEST(Cursor, FailedReadsDoNotMove) {
  Cursor cursor(ByteSpan("abc"sv), "the structure");
  cursor.skip(1);
  EXPECT_THROW(cursor.read<std::uint32_t>(), FormatError);
  EXPECT_THROW(cursor.take(kMax), FormatError);
  EXPECT_THROW(cursor.skip(3), FormatError);
  EXPECT_THROW(cursor.take_until(std::byte{'\n'}), FormatError);
  EXPECT_EQ(cursor.offset(), 1U);
  const std::string message = message_of<FormatError>([&] { cursor.take(100); });
  EXPECT_NE(message.find("the structure: truncated at 0x1"), message.npos) << message;
}

TEST(Cursor, Lines) {
  Cursor cursor(ByteSpan("one\n\nx"sv), "test");
  EXPECT_EQ(cursor.take_until(std::byte{'\n'}).text(), "one");
  EXPECT_EQ(cursor.take_until(std::byte{'\n'}).text(), "");
  EXPECT_THROW(cursor.take_until(std::byte{'\n'}), FormatError);
  EXPECT_EQ(cursor.take(1).text(), "x");
  EXPECT_THROW(cursor.take_until(std::byte{'\n'}), FormatError);
}

TEST(Quote, EscapesAndCuts) {
  EXPECT_EQ(quote("abc"), "'abc'");
  EXPECT_EQ(quote("a'b\\\n\x1b\xff"), "'a\\x27b\\x5c\\x0a\\x1b\\xff'");
  EXPECT_EQ(quote(std::string(200, 'x')), "'" + std::string(200, 'x') + "'");
  EXPECT_EQ(quote(std::string(1'000'000, 'x')), "'" + std::string(200, 'x') + "'...");
  EXPECT_EQ(hex(0), "0x0");
  EXPECT_EQ(hex(kMax), "0xffffffffffffffff");
}

}  // namespace
}  // namespace zerocopy::test::bytes_test
