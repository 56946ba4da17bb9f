#include "io/changed_paths.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "support.h"

namespace zerocopy::test::changed_paths_test {
namespace {

using Kind = KnownPath::Kind;

std::array<std::int64_t, 5> identity_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; };
  return {static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino), status.st_size,
          nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

TEST(ChangedPaths, NamesThoseThatDiffer) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "changed_paths";
  std::filesystem::create_directories(folder);
  const std::string file = folder / "a";
  const std::string late = folder / "late";
  std::filesystem::remove(late);
  std::ofstream(file) << "1";
  std::array<std::int64_t, 5> elsewhere = identity_of(file);
  elsewhere[0] += 1;
  const std::vector<KnownPath> known = {
      {file, Kind::file, identity_of(file)},       {late, Kind::missing, {}}, {folder, Kind::folder, {}},
      {folder, Kind::listed, identity_of(folder)}, {file, Kind::folder, {}},  {file, Kind::file, elsewhere}};
  EXPECT_EQ(changed_paths(known, true), (std::vector<std::size_t>{4, 5}));
  EXPECT_EQ(changed_paths(known, false), (std::vector<std::size_t>{4}));
  std::ofstream(file) << "22";
  std::ofstream(late) << "1";
  const std::vector<std::size_t> changed = changed_paths(known, true);
  EXPECT_EQ(changed, (std::vector<std::size_t>{0, 1, 3, 4, 5}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace zerocopy::test::changed_paths_test
