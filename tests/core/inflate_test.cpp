#include "container/inflate.h"

#include <zlib.h>

#include "support.h"

namespace zerocopy::test::inflate_test {
namespace {

std::string deflated(const std::string& content) {
  z_stream z{};
  EXPECT_EQ(::deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&z, content.size()), '\0');
  std::string in = content;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  ::deflateEnd(&z);
  return out;
}

Region inflated(std::string_view bytes, std::uint64_t size) {
  return inflate(*source_of(bytes), {0, bytes.size()}, size);
}

TEST(Inflate, RestoresTheInput) {
  for (const std::size_t size : {0U, 1U, 1000U, 3'000'000U}) {
    std::string content(size, 'x');
    for (std::size_t i = 0; i < size; i += 7) content[i] = static_cast<char>(i * i);
    const std::string stream = deflated(content);
    EXPECT_EQ(inflated(stream, size).bytes().text(), content);
    const std::string framed = "before" + stream + "after";
    EXPECT_EQ(inflate(*source_of(framed), {6, stream.size()}, size).bytes().text(), content);
  }
}

TEST(Inflate, RefusesEveryCut) {
  refuses_every_cut<FormatError>(deflated("some content that is content"),
                                 [](std::string_view bytes) { return inflated(bytes, 28); });
}

TEST(Inflate, RefusesOtherSizes) {
  const std::string stream = deflated(std::string(1000, 'x'));
  EXPECT_THROW(inflated(stream, 999), FormatError);
  EXPECT_THROW(inflated(stream, 0), FormatError);
  EXPECT_THROW(inflated(stream, 1001), FormatError);
  EXPECT_THROW(inflated(stream + "x", 1000), FormatError);
  EXPECT_THROW(inflated(std::string(100, '\xff'), 1000), FormatError);
}

TEST(Inflate, StopsABomb) {
  const std::string bomb = deflated(std::string(64U << 20U, '\0'));
  EXPECT_THROW(inflated(bomb, 64), FormatError);
  EXPECT_THROW(inflated(bomb, std::uint64_t{1} << 50U), FormatError);
}

TEST(Inflate, RatioIsDeflates) {
  EXPECT_TRUE(inflated_size_is_possible(0, 64));
  EXPECT_TRUE(inflated_size_is_possible(1, 1032 + 64));
  EXPECT_FALSE(inflated_size_is_possible(1, 2 * 1032 + 64));
  EXPECT_FALSE(inflated_size_is_possible(0, ~std::uint64_t{0}));
  EXPECT_FALSE(inflated_size_is_possible(1 << 20, ~std::uint64_t{0}));
  EXPECT_TRUE(inflated_size_is_possible(~std::uint64_t{0}, ~std::uint64_t{0}));
}

}  // namespace
}  // namespace zerocopy::test::inflate_test
