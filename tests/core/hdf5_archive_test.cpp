#include "checkpoint/hdf5_archive.h"

#include "hdf5_file.h"

namespace zerocopy::test::hdf5_archive_test {
namespace {

const std::string kPickle = "\x80\2N.";
const std::string kData = "\0\1\2\3\4\5\6\7\x8\x9\xa\xb\xc\xd\xe\xf"s;

std::unique_ptr<Archive> opened(const std::string& file) {
  return Archive::open(source_of(file), WholeMapper::of(region_of(file)), Mode::copy_on_write);
}

Hdf5Archive over(const std::string& file, Hdf5Listing listing) {
  return {Content(source_of(file), WholeMapper::of(region_of(file)), Mode::copy_on_write),
          std::move(listing)};
}

// key, offset, size; an offset of 0 stands for the right one
using Row = std::vector<std::uint64_t>;

// A torch.save archive with two storages.
class Saved {
 public:
  Saved& table(const std::vector<Row>& rows) {
    std::string bytes;
    for (const Row& row : rows) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        bytes += u64(i == 1 && row[1] == 0 ? file_.data_of(row[0] == 0 ? first_ : second_) : row[i]);
      }
    }
    const std::uint64_t columns = rows.empty() ? 3 : rows.front().size();
    table_ = file_.dataset(kInt64, {rows.size(), columns}, bytes);
    return *this;
  }

  Saved& byteorder(const std::string& order) {
    members_.insert(members_.begin(), {"byteorder", file_.bytes(order)});
    return *this;
  }

  std::string file() {
    members_.insert(members_.end() - 1, {"data", storages_.header});
    std::vector<Hdf5File::Member> root{{"archive", file_.group(members_).header}};
    if (table_ != 0) root.emplace_back("offsets_table", table_);
    return file_.file(root);
  }

 private:
  Hdf5File file_;
  std::uint64_t first_ = file_.bytes(kData);
  std::uint64_t second_ = file_.bytes("eight by");
  Hdf5File::Group storages_ = file_.group({{"0", first_}, {"1", second_}});
  std::vector<Hdf5File::Member> members_{{"data.pkl", file_.bytes(kPickle)}};
  std::uint64_t table_ = 0;
};

const Row kFirst{0, 0, 16};
const Row kSecond{1, 0, 8};

std::string storage(Archive& archive, std::string_view key, std::uint64_t nbytes) {
  const Record record = archive.records(std::vector{StorageRequest{key, untyped(), nbytes}}).at(0);
  return std::string(archive.content().storage(record, *dtype_by_name("uint8")).bytes().text());
}

TEST(Hdf5Archive, TorchSaveLayout) {
  for (const std::string& file : {Saved().file(), Saved().table({kFirst, kSecond}).file(),
                                  Saved().table({kSecond, kFirst}).byteorder("little").file()}) {
    const auto archive = opened(file);
    EXPECT_STREQ(archive->container(), "hdf5");
    EXPECT_TRUE(archive->is_pickled());
    EXPECT_FALSE(archive->content().big_endian());
    EXPECT_EQ(archive->end(), file.size());
    EXPECT_EQ(archive->pickle().bytes().text(), kPickle);
    EXPECT_EQ(archive->document().root.kind(), Kind::none);
    EXPECT_EQ(storage(*archive, "0", 16), kData);
    EXPECT_EQ(storage(*archive, "1", 8), "eight by");
  }
}

TEST(Hdf5Archive, StorageRecords) {
  const auto archive = opened(Saved().file());
  const auto record = [&](std::string_view key, std::uint64_t nbytes) {
    archive->records(std::vector{StorageRequest{key, untyped(), nbytes}});
  };
  for (const std::uint64_t nbytes : {0U, 15U, 17U}) EXPECT_THROW(record("0", nbytes), FormatError);
  for (const auto key : {""sv, "2"sv, " 0"sv, "../data.pkl"sv, "/archive/data/0"sv, "0\0"sv}) {
    EXPECT_THROW(record(key, 16), FormatError) << quote(key);
  }
  EXPECT_LT(message_of<FormatError>([&] { record(std::string(70'000, 'k'), 16); }).size(), 400U);
}

TEST(Hdf5Archive, RefusesWrongTables) {
  const std::vector<std::vector<Row>> lies{
      {},
      {kFirst},
      {kFirst, kFirst},
      {kFirst, kSecond, kSecond},
      {kFirst, {2, 0, 8}},
      {kFirst, {std::uint64_t{0} - 1, 0, 8}},
      {kFirst, {1, 0, 7}},
      {kFirst, {1, 0, ~std::uint64_t{0}}},
      {kFirst, {1, 8, 8}},
      {kFirst, {1, ~std::uint64_t{7}, 8}},
      {kFirst, {1, std::uint64_t{1} << 62U, std::uint64_t{1} << 62U}},
      {{0, 0}, {1, 0}},
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    EXPECT_THROW(opened(Saved().table(lies[i]).file()), FormatError) << "table " << i;
  }
}

TEST(Hdf5Archive, ByteOrders) {
  EXPECT_TRUE(opened(Saved().byteorder("big").file())->content().big_endian());
  for (const auto* order : {"", "middle", "Big", "big\n"}) {
    EXPECT_THROW(opened(Saved().byteorder(order).file()), FormatError) << order;
  }
  EXPECT_THROW(opened(Saved().byteorder(std::string(100, 'b')).file()), FormatError);
}

TEST(Hdf5Archive, Pickles) {
  Hdf5File two;
  const std::uint64_t first = two.group({{"data.pkl", two.bytes(kPickle)}}).header;
  const std::uint64_t second = two.group({{"data.pkl", two.bytes(kPickle)}}).header;
  EXPECT_THROW(opened(two.file({{"a", first}, {"b", second}})), FormatError);

  Hdf5File none;
  const std::uint64_t table = none.dataset(kInt64, {0, 3}, "");
  EXPECT_THROW(opened(none.file({{"offsets_table", table}})), FormatError);

  Hdf5File floats;
  const std::uint64_t group = floats.group({{"data.pkl", floats.dataset(kFloat32, {1}, kPickle)}}).header;
  EXPECT_THROW(opened(floats.file({{"archive", group}}))->pickle(), FormatError);

  // At the root, or below a subgroup, it is an ordinary dataset.
  Hdf5File elsewhere;
  const std::uint64_t inner = elsewhere.group({{"data.pkl", elsewhere.bytes(kPickle)}}).header;
  const std::uint64_t outer = elsewhere.group({{"inner", inner}}).header;
  const auto archive = opened(elsewhere.file({{"data.pkl", elsewhere.bytes(kPickle)}, {"outer", outer}}));
  EXPECT_FALSE(archive->is_pickled());
  EXPECT_THROW(archive->pickle(), UnsupportedError);
  EXPECT_EQ(archive->document().storages.size(), 2U);
}

TEST(Hdf5Archive, GroupsAreDicts) {
  Hdf5File file;
  const std::uint64_t weight = file.dataset(kFloat32, {2, 2}, kData);
  const std::uint64_t model = file.group({{"empty", file.group({}).header}, {"weight", weight}}).header;
  const auto archive = opened(file.file({{"model", model}, {"step", file.dataset(kInt64, {}, "12345678")}}));
  EXPECT_FALSE(archive->is_pickled());
  const Document document = archive->document();
  ASSERT_EQ(document.root.kind(), Kind::dict);
  ASSERT_EQ(document.storages.size(), 2U);
  EXPECT_EQ(document.storages[0]->key, "model/weight");
  EXPECT_EQ(document.storages[0]->nbytes, 16U);
  EXPECT_EQ(document.storages[1]->key, "step");
  const std::vector<Record> records = archive->records(storage_requests(document));
  EXPECT_EQ(records[0].extent.offset, file.data_of(weight));
  EXPECT_EQ(records[0].extent.size, 16U);
}

TEST(Hdf5Archive, RefusesOverlappingDatasets) {
  Hdf5File file;
  const std::uint64_t first = file.dataset(kFloat32, {4}, kData);
  const std::uint64_t second = file.append(Hdf5Header{
      {hdf5_dataspace({4}), hdf5_message(3, kFloat32), hdf5_contiguous(file.data_of(first) + 8, 16)}}
                                               .bytes());
  EXPECT_THROW(opened(file.file({{"first", first}, {"second", second}})), FormatError);
}

// A file that is not plain is not broken: an HDF5 library can read it.
TEST(Hdf5Archive, FilesThatNeedAnHdf5Library) {
  EXPECT_THROW(opened(kHdf5Signature), UnsupportedError);
  refuses_every_cut<Error>(Saved().file(), [](std::string_view file) { opened(std::string(file)); });
}

// ---------------------------------------------------------------- listings of another library

class Read final : public ExternalBytes {
 public:
  Read() : ExternalBytes("it is packed") {}
  Region read() const override { return region_of(kData); }
};

TEST(Hdf5Archive, ExternalDatasets) {
  const Hdf5Entry packed{.path = "x", .dtype = "uint8", .shape = {16}, .external = std::make_shared<Read>()};
  Hdf5Entry tied = packed;
  tied.path = "y";
  tied.same_as = 0;
  Hdf5Archive archive = over("", {packed, tied});
  const Document document = archive.document(false);
  ASSERT_EQ(document.storages.size(), 1U) << "one storage of two names";
  const Record record = archive.records(storage_requests(document)).at(0);
  EXPECT_STREQ(archive.content().placement(record, *dtype_by_name("uint8")).why, "it is packed");
  EXPECT_EQ(archive.content().storage(record, *dtype_by_name("uint8")).bytes().text(), kData);
}

TEST(Hdf5Archive, RefusesContradictoryListings) {
  const auto entry = [](const std::string& path, std::int64_t size, std::uint64_t offset) {
    return Hdf5Entry{.path = path, .dtype = "uint8", .shape = {size}, .offset = offset};
  };
  const std::string file(64, '\0');
  EXPECT_NO_THROW(over(file, {entry("x", 32, 0), entry("y", 32, 32)}));
  EXPECT_THROW(over(file, {entry("x", 65, 0)}), FormatError);
  EXPECT_THROW(over(file, {entry("x", 1, 64)}), FormatError);
  EXPECT_THROW(over(file, {entry("x", 8, ~std::uint64_t{3})}), FormatError);
  EXPECT_THROW(over(file, {entry("x", -1, 0)}), FormatError);
  EXPECT_THROW(over(file, {entry("x", 8, 0), entry("x", 8, 8)}), FormatError);
  EXPECT_THROW(over(file, {entry("g/x", 8, 0)}).document(false), FormatError);
  EXPECT_THROW(over(file, {{.path = "x", .dtype = "float7", .shape = {1}, .offset = 0}}), FormatError);

  Hdf5Entry virtual_one{.path = "x", .dtype = "uint8", .shape = {8}, .refusal = "is virtual"};
  Hdf5Archive archive = over(file, {virtual_one});
  const Document document = archive.document(false);
  const std::vector<Record> records = archive.records(storage_requests(document));
  ASSERT_EQ(records.size(), 1);
  EXPECT_THROW(archive.content().read(records[0]), UnsupportedError);
}

}  // namespace
}  // namespace zerocopy::test::hdf5_archive_test
