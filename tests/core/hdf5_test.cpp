#include "container/hdf5.h"

#include "hdf5_file.h"

namespace zerocopy::test::hdf5_test {
namespace {

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
    EXPECT_EQ(list_plain_hdf5(*source_of(whole)).has_value(), length == 20);
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
