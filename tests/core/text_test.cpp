#include "memory/arena.h"
#include "support.h"
#include "text/name_table.h"
#include "text/utf8.h"

namespace zerocopy::test::text_test {
namespace {

bool is_utf8(std::string_view text, Surrogates surrogates = Surrogates::refuse) {
  return zerocopy::is_utf8(region_of(text).bytes(), surrogates);
}

TEST(Utf8, AcceptsEveryLength) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain ascii, longer than a word"));
  EXPECT_TRUE(is_utf8("\0"sv));
  EXPECT_TRUE(is_utf8("\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
  EXPECT_TRUE(is_utf8("\xed\x9f\xbf\xee\x80\x80"));  // on both sides of the surrogates
}

TEST(Utf8, RefusesWhatRfc3629Refuses) {
  for (const auto bad :
       {"\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xe0\x9f\xbf"sv, "\xf0\x8f\xbf\xbf"sv,
        "\xf4\x90\x80\x80"sv, "\xf5\x80\x80\x80"sv, "\xf8\x88\x80\x80\x80"sv, "\xff"sv, "\xc2"sv,
        "\xe2\x82"sv, "\xf0\x9f\x98"sv, "\xc2\x41"sv, "\xe2\x82\x41"sv, "abcdefgh\xff"sv}) {
    EXPECT_FALSE(is_utf8(bad)) << quote(bad);
    EXPECT_FALSE(is_utf8(bad, Surrogates::accept)) << quote(bad);
  }
}

TEST(Utf8, SurrogatesOnRequest) {
  for (const auto lone : {"\xed\xa0\x80"sv, "\xed\xbf\xbf"sv}) {
    EXPECT_FALSE(is_utf8(lone));
    EXPECT_TRUE(is_utf8(lone, Surrogates::accept));
  }
}

TEST(Utf8, FindsABadByteAtEveryPlace) {
  for (std::size_t at = 0; at < 24; ++at) {
    std::string text(24, 'x');
    EXPECT_TRUE(is_utf8(text));
    text[at] = '\xff';
    EXPECT_FALSE(is_utf8(text)) << at;
  }
}

TEST(NameHash, FoldedNamesHashEqually) {
  EXPECT_EQ(FoldedHash()("Archive/DATA.pkl"), FoldedHash()("archive/data.PKL"));
  EXPECT_NE(NameHash()("Archive"), NameHash()("archive"));
  EXPECT_NE(NameHash()("ab"), NameHash()("ba"));
  EXPECT_TRUE(FoldedEqual()("A", "a"));
  EXPECT_FALSE(FoldedEqual()("a", "aa"));
  EXPECT_FALSE(FoldedEqual()("[", "{"));  // ASCII letters only
  EXPECT_FALSE(FoldedEqual()("\xc3\x84", "\xc3\xa4"));
  EXPECT_EQ(hash_key() & 1U, 1U);
  EXPECT_EQ(hash_key(), hash_key());
}

TEST(NameHash, FoldsEightCharactersAsOne) {
  for (int c = 0; c < 256; ++c) {
    std::string characters = "aZ@[`{.x";
    for (std::size_t at = 0; at < characters.size(); ++at) {
      std::string eight = characters;
      eight[at] = static_cast<char>(c);
      Characters folded = 0;
      std::memcpy(&folded, eight.data(), sizeof(folded));
      folded = fold_ascii(folded);
      for (char& one : eight) one = fold_ascii(one);
      EXPECT_EQ(std::memcmp(&folded, eight.data(), sizeof(folded)), 0) << c << " at " << at;
    }
  }
}

TEST(NameHash, EveryCharacterCounts) {
  for (std::size_t size = 1; size < 20; ++size) {
    const std::string name(size, 'a');
    EXPECT_NE(NameHash()(name), NameHash()(name + 'a'));
    EXPECT_NE(NameHash()(name), NameHash()(name + '\0'));
    for (std::size_t at = 0; at < size; ++at) {
      std::string other = name;
      other[at] = 'b';
      EXPECT_NE(NameHash()(name), NameHash()(other)) << other;
    }
  }
}

TEST(NameTable, FindsEachAmongMany) {
  std::vector<std::string> names(5000);
  NameTable<NameHash> table;
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = "name" + std::to_string(i);
    EXPECT_TRUE(table.insert(names[i], i).second);
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_FALSE(table.insert(names[i], 0).second);
    ASSERT_NE(table.find(names[i]), nullptr);
    EXPECT_EQ(table.find(names[i])->value, i);
  }
  EXPECT_EQ(table.find("name"), nullptr);
  EXPECT_EQ(table.find(""), nullptr);
  const std::string empty;
  EXPECT_TRUE(table.insert(empty, 7).second);
  EXPECT_EQ(table.find("")->value, 7U);
  EXPECT_FALSE((NameTable<FoldedHash, FoldedEqual>(1).find("a")));
}

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
}  // namespace zerocopy::test::text_test
