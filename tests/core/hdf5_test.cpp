#include "container/hdf5.h"

#include "hdf5_file.h"

namespace zerocopy::test::hdf5_test {
namespace {

using Lines = std::vector<std::string>;
const Lines kNotPlain{"not plain"};

std::string line_of(const Hdf5Entry& entry) {
  if (entry.is_group) return entry.path + "/";
  std::string line = entry.path + " " + entry.dtype;
  for (const std::int64_t n : entry.shape) line += " " + std::to_string(n);
  return line + " at " + std::to_string(entry.offset.value());
}

Lines list(const Source& source) {
  const std::optional<Hdf5Listing> listing = list_plain_hdf5(source);
  if (!listing) return kNotPlain;
  Lines lines;
  for (const Hdf5Entry& entry : *listing) lines.push_back(line_of(entry));
  return lines;
}
Lines list(std::string_view file) { return list(*source_of(file)); }

// Builds a file whose only dataset, four floats at 96, has these messages.
const std::string kShape = hdf5_dataspace({4});
const std::string kType = hdf5_message(3, kFloat32);
const std::string kLayout = hdf5_contiguous(96, 16);
const Lines kOne{"x float32 4 at 96"};

std::string one(const Hdf5Header& header = {{kShape, kType, kLayout}}) {
  Hdf5File file;
  file.append("1234567890123456");
  return file.file({{"x", file.append(header.bytes())}});
}

TEST(Hdf5, Recognises) {
  EXPECT_TRUE(is_hdf5(*source_of(kHdf5Signature)));
  for (const auto* other : {"", "\x89HDF", "\x89HDF\r\n\x1a", "HDF5 that it is not"}) {
    EXPECT_FALSE(is_hdf5(*source_of(other)));
    EXPECT_EQ(list(other), kNotPlain);
  }
}

TEST(Hdf5, ListsGroupsAndDatasets) {
  Hdf5File file;
  const std::uint64_t weight = file.dataset(kFloat32, {2, 3}, std::string(24, 'w'));
  const std::uint64_t step = file.dataset(kInt64, {}, std::string(8, 's'));
  const std::uint64_t none = file.dataset(kUint8, {0, 5}, "");
  const Hdf5File::Group empty = file.group({});
  const Hdf5File::Group model = file.group({{"none", none}, {"weight", weight}});
  const std::string whole = file.file({{"empty", empty.header}, {"model", model.header}, {"step", step}});
  EXPECT_EQ(list(whole),
            (Lines{"empty/", "model/", "model/none uint8 0 5 at 0", "model/weight float32 2 3 at 96",
                   "step int64 at " + std::to_string(file.data_of(step))}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(list(whole.substr(0, size)), kNotPlain) << "cut at " << size;
  }
  EXPECT_EQ(list(whole + "more").size(), 5U);  // libhdf5 uses the size in the superblock
}

TEST(Hdf5, ManyNamesInLeaves) {
  for (const int count : {8, 9, 100}) {
    Hdf5File file;
    std::vector<Hdf5File::Member> members;
    for (int i = 0; i < count; ++i) {
      members.emplace_back(std::to_string(1000 + i), file.bytes("x"));
    }
    EXPECT_EQ(list(file.file(members)).size(), static_cast<std::size_t>(count));
  }
}

TEST(Hdf5, Superblock) {
  EXPECT_EQ(list(one()), kOne);
  const auto changed = [](std::size_t at, const std::string& bytes) {
    std::string file = one();
    return list(file.replace(at, bytes.size(), bytes));
  };
  for (std::size_t at = 8; at < 16; ++at) EXPECT_EQ(changed(at, "\7"), kNotPlain) << "version at " << at;
  EXPECT_EQ(changed(16, u16(0)), kNotPlain) << "leaves without room";
  EXPECT_EQ(changed(16, u16(0xFFFF)), kNotPlain) << "leaves that are huge";
  EXPECT_EQ(changed(18, u16(0)), kNotPlain) << "nodes without room";
  EXPECT_EQ(changed(20, u32(1)), kNotPlain) << "open elsewhere";
  EXPECT_EQ(changed(24, u64(512)), kNotPlain) << "behind a user block";
  EXPECT_EQ(changed(32, u64(96)), kNotPlain) << "free space";
  EXPECT_EQ(changed(40, u64(one().size() + 1)), kNotPlain) << "longer than the file";
  EXPECT_EQ(changed(40, u64(100)), kNotPlain) << "ends before its data";
  EXPECT_EQ(changed(48, u64(96)), kNotPlain) << "a driver";
  EXPECT_EQ(changed(64, u64(~std::uint64_t{0})), kNotPlain) << "a root that is nowhere";
  EXPECT_EQ(changed(72, u32(1)), kNotPlain) << "tables of the root that are not its own";
  EXPECT_EQ(changed(72, u32(2)), kNotPlain) << "a root that is a soft link";
}

TEST(Hdf5, Headers) {
  const std::string modified = hdf5_message(0x12, std::string(8, '\0'));
  EXPECT_EQ(list(one({{modified, kShape, kType, kLayout, hdf5_message(0, "")}})), kOne);
  EXPECT_EQ(list(one({.messages = {kShape, kType, kLayout}, .version = 2})), kNotPlain);
  EXPECT_EQ(list(one({.messages = {kShape, kType, kLayout}, .names = 2})), kNotPlain);
  EXPECT_EQ(list(one({{kShape, kType}})), kNotPlain);
  EXPECT_EQ(list(one({{kShape, kLayout}})), kNotPlain);
  EXPECT_EQ(list(one({{kType, kLayout}})), kNotPlain);
  EXPECT_EQ(list(one({{kShape, kShape, kType, kLayout}})), kNotPlain) << "two shapes";
  for (const std::uint64_t type : {2U, 6U, 7U, 0xBU, 0xCU, 0x10U, 0x15U, 0x16U, 0xFFFFU}) {
    EXPECT_EQ(list(one({{kShape, kType, kLayout, hdf5_message(type, std::string(8, '\0'))}})), kNotPlain)
        << "message " << type;
  }
  EXPECT_EQ(list(one({{kShape, hdf5_message(3, kFloat32, 1), kLayout}})), kOne) << "constant";
  EXPECT_EQ(list(one({{kShape, hdf5_message(3, kFloat32, 2), kLayout}})), kNotPlain) << "shared";
  EXPECT_EQ(list(one({{kShape, hdf5_message(3, kFloat32 + "1234"), kLayout}})), kNotPlain) << "not padded";
}

TEST(Hdf5, FillValues) {
  const auto with = [](std::uint64_t type, const std::string& body) {
    return list(one({{kShape, kType, hdf5_message(type, body), kLayout}}));
  };
  EXPECT_EQ(with(5, "\2\2\2\1\4\0\0\0\0\0\xe0\x40\0\0\0\0"s), kOne);
  EXPECT_EQ(with(5, "\2\2\2\0\xff\xff\xff\xff"s), kOne) << "none";
  EXPECT_EQ(with(5, "\2\2\2\1\5\0\0\0"s), kNotPlain) << "longer than its message";
  EXPECT_EQ(with(5, "\4\2\2\0\0\0\0\0"s), kNotPlain);
  EXPECT_EQ(with(4, "\4\0\0\0\0\0\xe0\x40"s), kOne);
  EXPECT_EQ(with(4, "\5\0\0\0\0\0\xe0\x40"s), kNotPlain);
}

TEST(Hdf5, MessagesEndWithTheirHeader) {
  std::string file = one();
  const std::size_t header = file.find(kShape) - 16;
  const std::size_t size = kShape.size() + kType.size() + kLayout.size();
  ASSERT_EQ(file.substr(header + 8, 4), u32(size));
  EXPECT_EQ(list(file.replace(header + 8, 4, u32(size - 8))), kNotPlain) << "the last is cut";
  EXPECT_EQ(list(file.replace(header + 8, 4, u32(0xFFFFFFFF))), kNotPlain);
  EXPECT_EQ(list(file.replace(header + 8, 4, u32(size))), kOne);
  EXPECT_EQ(list(file.replace(header + 2, 2, u16(4))), kNotPlain) << "more were announced";
}

TEST(Hdf5, Types) {
  const auto of = [](const std::string& type) {
    return list(one({{kShape, hdf5_message(3, type), kLayout}}));
  };
  EXPECT_EQ(of(kFloat32), kOne);
  EXPECT_EQ(of(kBigFloat32), kNotPlain);
  EXPECT_EQ(of("\x13\0\0\0\4\0\0\0"s), kNotPlain) << "a string";
  EXPECT_EQ(of(kFloat32.substr(0, 16)), kNotPlain) << "cut";
  EXPECT_EQ(of(kInt64), kNotPlain) << "of another size than the layout has";
  for (std::size_t i = 0; i < 20; ++i) {
    std::string type = kFloat32;
    type[i] = static_cast<char>(type[i] ^ 0x40);
    EXPECT_EQ(of(type), kNotPlain) << "byte " << i;
  }
}

TEST(Hdf5, Shapes) {
  const auto of = [](const std::string& shape) { return list(one({{shape, kType, kLayout}})); };
  EXPECT_EQ(of(hdf5_dataspace({2, 1, 2})), (Lines{"x float32 2 1 2 at 96"}));
  EXPECT_EQ(of(hdf5_dataspace({3})), kNotPlain);
  EXPECT_EQ(of(hdf5_dataspace({std::uint64_t{1} << 63U})), kNotPlain) << "negative";
  EXPECT_EQ(of(hdf5_dataspace({(std::uint64_t{1} << 62U) + 4})), kNotPlain) << "wraps";
  EXPECT_EQ(of(hdf5_dataspace(std::vector<std::uint64_t>(33, 1))), kNotPlain);
  EXPECT_EQ(of(hdf5_message(1, "\2\1\0\0\0\0\0\0"s + u64(4))), kNotPlain) << "version 2";
  EXPECT_EQ(of(hdf5_message(1, "\1\2\0\0\0\0\0\0"s + u64(4))), kNotPlain) << "a dimension is missing";
}

TEST(Hdf5, Layouts) {
  const auto of = [](const std::string& layout) { return list(one({{kShape, kType, layout}})); };
  EXPECT_EQ(of(hdf5_contiguous(~std::uint64_t{0}, 16)), kNotPlain) << "never written";
  EXPECT_EQ(of(hdf5_contiguous(~std::uint64_t{7}, 16)), kNotPlain) << "wraps";
  EXPECT_EQ(of(hdf5_contiguous(0, 16)), kNotPlain) << "in the superblock";
  EXPECT_EQ(of(hdf5_contiguous(one().size() - 15, 16)), kNotPlain) << "past the end";
  EXPECT_EQ(of(hdf5_contiguous(96, 15)), kNotPlain);
  EXPECT_EQ(of(hdf5_message(8, "\3\2"s + u64(96) + u64(16) + std::string(6, '\0'))), kNotPlain) << "chunked";
  EXPECT_EQ(of(hdf5_message(8, "\4\1"s + u64(96) + u64(16) + std::string(6, '\0'))), kNotPlain);
}

TEST(Hdf5, NamesAreInOrderAndOnce) {
  const auto named = [](const Lines& names) {
    Hdf5File file;
    std::vector<Hdf5File::Member> members;
    for (const std::string& name : names) members.emplace_back(name, file.bytes("x"));
    return list(file.file(members)).size();
  };
  EXPECT_EQ(named({"a", "aa", "b", "\xc3\xa9"}), 4U);
  for (const Lines& names : {Lines{"b", "a"},
                             {"a", "a"},
                             {""},
                             {"."},
                             {"a/b"},
                             {"\xff"},
                             {"\xed\xa0\x80"},
                             {"/"},
                             {"a", "b", "\xc3\xa9", "c"}}) {
    EXPECT_EQ(named(names), 1U) << quote(names.front());
  }
}

// libhdf5 finds names by these keys. With wrong keys it lists names that it cannot find.
TEST(Hdf5, KeysOfTheTree) {
  Hdf5File file;
  std::vector<Hdf5File::Member> members;
  for (const char name : "abcdefghij"s) members.emplace_back(std::string(1, name), file.bytes("x"));
  const Hdf5File::Group root = file.group(members);
  EXPECT_EQ(list(file.file(root)).size(), 10U);
  file.put(root.tree + 24 + 16, u64(8 + 8 * 6));  // "g" is above the first leaf's key
  EXPECT_EQ(list(file.file(root)), kNotPlain);
  file.put(root.tree + 24 + 16, u64(8 + 8 * 8));  // "i" is in the first leaf
  EXPECT_EQ(list(file.file(root)), kNotPlain);
  file.put(root.tree + 24 + 16, u64(1 << 20));  // outside of the heap
  EXPECT_EQ(list(file.file(root)), kNotPlain);
}

TEST(Hdf5, Trees) {
  const auto changed = [](auto change) {
    Hdf5File file;
    const Hdf5File::Group root = file.group({{"x", file.bytes("x")}});
    change(file, root);
    return list(file.file(root)).front();
  };
  using Group = Hdf5File::Group;
  EXPECT_EQ(changed([](Hdf5File&, const Group&) {}), "x uint8 1 at 96");
  const std::vector<void (*)(Hdf5File&, const Group&)> changes{
      [](Hdf5File& file, const Group& root) { file.put(root.tree, "TREF"); },
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 4, "\1"); },  // a tree of chunks
      // A leaf instead of a node.
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 5, "\1"); },
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 5, "\xff"); },  // 255 levels
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 6, u16(33)); },
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 32, u64(root.tree)); },
      // Has siblings.
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 8, u64(root.tree)); },
      [](Hdf5File& file, const Group& root) { file.put(root.tree + 16, u64(root.tree)); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf, "SNOE"); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 4, "\2"); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 6, u16(2)); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 6, u16(9)); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 8, u64(1 << 20)); },
      // Claims to be a group.
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 24, u32(1)); },
      [](Hdf5File& file, const Group& root) { file.put(root.leaf + 24, u32(2)); },  // a soft link
      [](Hdf5File& file, const Group& root) { file.put(root.heap, "HEAQ"); },
      // The name is not terminated.
      [](Hdf5File& file, const Group& root) { file.put(root.heap + 8, u64(9)); },
      [](Hdf5File& file, const Group& root) { file.put(root.heap + 8, u64(~std::uint64_t{0})); },
      [](Hdf5File& file, const Group& root) { file.put(root.heap + 24, u64(~std::uint64_t{0})); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i)
    EXPECT_EQ(changed(changes[i]), "not plain") << "change " << i;
}

// Free blocks of deleted names: the position of the next block, and a size.
TEST(Hdf5, FreeLists) {
  const auto with = [](std::uint64_t first, std::uint64_t next, std::uint64_t size) {
    Hdf5File file;
    const Hdf5File::Group root =
        file.group({{"x", file.bytes("x")}, {"y" + std::string(30, 'y'), file.bytes("y")}});
    file.put(root.names + 24, u64(next) + u64(size));
    file.put(root.heap + 16, u64(first));
    return list(file.file(root)).size();
  };
  EXPECT_EQ(with(24, 1, 16), 2U);
  EXPECT_EQ(with(24, 1, 24), 2U);
  EXPECT_EQ(with(24, 1, 25), 1U) << "past the end";
  EXPECT_EQ(with(24, 0, 16), 1U) << "the next is nowhere";
  EXPECT_EQ(with(24, 24, 16), 1U) << "the next is itself";
  EXPECT_EQ(with(33, 1, 16), 1U) << "no room for its head";
  EXPECT_EQ(with(~std::uint64_t{0}, 1, 16), 1U);
}

// libhdf5 keeps one structure per address.
TEST(Hdf5, StructuresLieApart) {
  Hdf5File file;
  const Hdf5File::Group inner = file.group({{"x", file.bytes("x")}});
  const Hdf5File::Group root = file.group({{"x", inner.header}});
  EXPECT_EQ(list(file.file(root)).size(), 2U);
  file.put(root.heap + 24, u64(inner.names));
  EXPECT_EQ(list(file.file(root)), kNotPlain) << "one heap";
}

TEST(Hdf5, StructuresEndWithTheFile) {
  Hdf5File file;
  const Hdf5File::Group root = file.group({{"x", file.bytes("x")}});
  const std::string whole = file.file(root);
  EXPECT_EQ(list(whole), (Lines{"x uint8 1 at 96"}));
  for (std::uint64_t end = 0; end < whole.size(); ++end) {
    std::string cut = whole;
    EXPECT_EQ(list(cut.replace(40, 8, u64(end))), kNotPlain) << "at " << end;
  }
}

TEST(Hdf5, EmptyGroups) {
  Hdf5File file;
  const Hdf5File::Group inner = file.group({});
  const Hdf5File::Group root = file.group({{"x", inner.header}});
  EXPECT_EQ(list(file.file(root)), (Lines{"x/"}));
  file.put(inner.tree + 5, "\1");
  EXPECT_EQ(list(file.file(root)), kNotPlain) << "of two levels";
}

TEST(Hdf5, RefusesHardLinks) {
  Hdf5File twice;
  const std::uint64_t data = twice.bytes("x");
  EXPECT_EQ(list(twice.file({{"a", data}, {"b", data}})), kNotPlain);
  Hdf5File circle;
  const Hdf5File::Group root = circle.group({{"x", 8}});
  circle.put(root.leaf + 16, u64(root.header));
  EXPECT_EQ(list(circle.file(root)), kNotPlain);
}

TEST(Hdf5, Nesting) {
  for (const int depth : {64, 65}) {
    Hdf5File file;
    Hdf5File::Group group = file.group({});
    for (int i = 0; i < depth; ++i) group = file.group({{"g", group.header}});
    EXPECT_EQ(list(file.file(group)).size(), depth == 64 ? 64U : 1U);
  }
}

// Reading and memory stay in proportion for small files that claim much.
class CountingSource final : public Source {
 public:
  explicit CountingSource(std::string file) : file_(std::move(file)) {}
  std::uint64_t size() const noexcept override { return file_.size(); }
  void require_unchanged() const override {}
  void require_in_place() const override {}
  std::uint64_t read_so_far() const { return read_; }

 private:
  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    std::memcpy(into.data(), file_.data() + offset, into.size());
    read_ += into.size();
  }

  std::string file_;
  mutable std::uint64_t read_ = 0;  // no file here is so large that threads read it
};

// Many groups share a heap of a megabyte. In an honest file each group has its own.
TEST(Hdf5Proportion, SharedHeapsAreReadOnce) {
  Hdf5File file;
  const std::uint64_t names = file.append(std::string(8, '\0') + "g" + std::string(1 << 20, '\0'));
  std::uint64_t inner = file.group({}).header;
  for (int i = 0; i < 60; ++i) {
    const Hdf5File::Group group = file.group({{"g", inner}});
    file.put(group.heap + 8, u64(1 << 20));
    file.put(group.heap + 24, u64(names));
    inner = group.header;
  }
  const CountingSource source(file.file({{"g", inner}}));
  EXPECT_FALSE(list_plain_hdf5(source));
  EXPECT_LT(source.read_so_far(), 4 * source.size());
}

TEST(Hdf5Proportion, PathsInProportion) {
  for (const std::size_t length : {20U, 2'000'000U}) {
    Hdf5File file;
    std::vector<Hdf5File::Member> members;
    for (int i = 0; i < 250; ++i) members.emplace_back(std::to_string(1000 + i), file.bytes("x"));
    const Hdf5File::Group inner = file.group(members);
    const std::string whole = file.file({{std::string(length, 'g'), inner.header}});
    EXPECT_EQ(list(whole) != kNotPlain, length == 20);
  }
}

// A name may be the end of another name: 500 names share the bytes of one.
TEST(Hdf5Proportion, NamesThatShareBytes) {
  Hdf5File file;
  std::vector<Hdf5File::Member> members{{std::string(1'000'000, 'n'), file.bytes("x")}};
  for (int i = 1; i < 500; ++i) members.emplace_back(std::to_string(i), file.bytes("x"));
  const Hdf5File::Group root = file.group(members, 500);
  for (std::uint64_t i = 0; i < 500; ++i) file.put(root.leaf + 8 + 40 * i, u64(8 + 499 - i));
  EXPECT_FALSE(list_plain_hdf5(*source_of(file.file(root, 250))));
}

}  // namespace
}  // namespace zerocopy::test::hdf5_test
