#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/mapping.h"
#include "support.h"

namespace zerocopy::test::file_test {
namespace {

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "zerocopy_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns the errno of the FileError that a call throws, or 0.
  template <typename Call>
  static int error_of(const std::string& path, Call call) {
    try {
      call();
    } catch (const FileError& error) {
      EXPECT_EQ(error.path(), path);
      return error.code().value();
    }
    return 0;
  }
  static int refusal(const std::string& path) {
    return error_of(path, [&] { File::open(path, File::Access::read); });
  }
  static int change(const File& file) {
    return error_of(file.path(), [&] { file.require_unchanged(); });
  }

  // Writes a file with an old date, so later writes change the date.
  std::string write_old(const std::string& name, const std::string& content) const {
    write(name, content);
    set_date(path(name), 1);
    return path(name);
  }
  static void set_date(const std::string& path, std::time_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

 private:
  std::string folder_;
};

TEST_F(Files, OpensAndReads) {
  const File file = File::open(write("file", "0123456789"), File::Access::read);
  EXPECT_EQ(file.size(), 10U);
  std::byte bytes[4];
  file.read(6, bytes);
  EXPECT_EQ(ByteSpan(bytes, 4).text(), "6789");
  file.read(10, {});
  EXPECT_THROW(file.read(7, bytes), FormatError);
  EXPECT_NE(::fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(Files, RefusesOtherThanRegularFiles) {
  EXPECT_EQ(refusal(path("missing")), ENOENT);
  EXPECT_EQ(refusal(path("")), EISDIR);
  EXPECT_EQ(refusal("/dev/zero"), EINVAL);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("fifo")), EINVAL);  // does not wait for a writer
  std::filesystem::create_symlink(path("nowhere"), path("dangling"));
  EXPECT_EQ(refusal(path("dangling")), ENOENT);
}

TEST_F(Files, RefusalsLeakNoDescriptor) {
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(before);
  for (int i = 0; i < 10; ++i) refusal(path(""));
  const int after = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(after);
  EXPECT_EQ(before, after);
}

TEST_F(Files, MovesAndDuplicates) {
  File file = File::open(write("file", "abc"), File::Access::read);
  File moved = std::move(file);
  const File copy = File::duplicate(moved.descriptor(), "name");
  EXPECT_NE(copy.descriptor(), moved.descriptor());
  EXPECT_EQ(copy.path(), "name");
  moved = File::open(write("other", "defgh"), File::Access::read);
  EXPECT_EQ(moved.size(), 5U);
  EXPECT_THROW(File::duplicate(-1, "none"), FileError);
}

TEST_F(Files, SourceOfARestOfAFile) {
  const std::string name = write("file", "0123456789");
  const FileSource source(File::open(name, File::Access::read), 3);
  EXPECT_EQ(source.size(), 7U);
  EXPECT_EQ(source.read(Extent{1, 3}).bytes().text(), "456");
  EXPECT_EQ(source.read(Extent{7, 0}).size(), 0U);
  EXPECT_THROW(source.read(Extent{6, 2}), FormatError);
  EXPECT_THROW(source.read(Extent{1, ~std::uint64_t{0}}), FormatError);
  EXPECT_THROW(FileSource(File::open(name, File::Access::read), 11), FormatError);
}

TEST_F(Files, ShrinksWhileItIsRead) {
  const std::string name = write("file", std::string(10'000, 'x'));
  const FileSource source(File::open(name, File::Access::read), 0);
  std::filesystem::resize_file(name, 10);
  EXPECT_EQ(error_of(name, [&] { source.read(Extent{5000, 10}); }), ESTALE);
  EXPECT_EQ(error_of(name, [&] { source.read(Extent{0, 100}); }), ESTALE);
  EXPECT_EQ(source.read(Extent{0, 10}).size(), 10U);
}

TEST_F(Files, UnchangedByReadingAndMapping) {
  const std::string name = write("file", "content");
  const File file = File::open(name, File::Access::read);
  std::byte bytes[7];
  file.read(0, bytes);
  const Region region = map_file(file, 0, Mode::copy_on_write);
  region.data()[0] = std::byte{'C'};
  EXPECT_EQ(change(file), 0);
  EXPECT_EQ(change(File::duplicate(file.descriptor(), name)), 0);
}

TEST_F(Files, ChangedByEveryWrite) {
  const auto changed_by = [this](auto change_file) {
    const std::string name = write_old("file", "0123456789");
    const File file = File::open(name, File::Access::read);
    change_file(name);
    return change(file);
  };
  EXPECT_EQ(changed_by([](const auto& /*name*/) {}), 0);
  EXPECT_EQ(changed_by([](const auto& name) { std::filesystem::resize_file(name, 9); }), ESTALE);
  EXPECT_EQ(changed_by([](const auto& name) { std::filesystem::resize_file(name, 11); }), ESTALE);
  EXPECT_EQ(changed_by([this](const auto& /*name*/) { write("file", "9876543210"); }), ESTALE);
}

TEST_F(Files, ChangedEvenIfTheDateIsSetBack) {
  const std::string name = write_old("file", "0123456789");
  const File file = File::open(name, File::Access::read);
  // Only the change time can differ, and its clock ticks a few times in 10 ms.
  for (int i = 0; i < 100 && change(file) == 0; ++i) {
    ::usleep(1000);
    write("file", "9876543210");
    set_date(name, 1);
  }
  EXPECT_EQ(change(file), ESTALE);
}

TEST_F(Files, UnchangedWhenReplacedUnlinkedOrLinked) {
  const std::string name = write_old("file", "0123456789");
  const File file = File::open(name, File::Access::read);
  std::filesystem::create_hard_link(name, path("link"));
  EXPECT_EQ(change(file), 0);
  std::filesystem::remove(path("link"));
  std::filesystem::rename(write("new", "other"), name);
  EXPECT_EQ(change(file), 0);
  EXPECT_EQ(FileSource(File::open(name, File::Access::read), 0).size(), 5U);
}

TEST_F(Files, SourcesDetectChanges) {
  const std::string name = write_old("file", "0123456789");
  const FileSource source(File::open(name, File::Access::read), 3);
  source.require_unchanged();
  MemorySource(source.read(Extent{0, 7})).require_unchanged();
  write("file", "9876543210");
  EXPECT_EQ(error_of(name, [&] { source.require_unchanged(); }), ESTALE);
}

TEST_F(Files, InPlaceMeansFoundAtItsPathAndWhole) {
  const std::string name = write("file", "0123456789");
  const File file = File::open(name, File::Access::read);
  const auto in_place = [&] { file.require_in_place(); };
  EXPECT_EQ(error_of(name, in_place), 0);
  write("file", "012345678");
  EXPECT_EQ(error_of(name, in_place), ESTALE);
  write("file", "9876543210");  // of the same length; require_in_place() ignores the content
  EXPECT_EQ(error_of(name, in_place), 0);
  std::filesystem::rename(write("other", "0123456789"), name);
  EXPECT_EQ(error_of(name, in_place), ESTALE);
  std::filesystem::remove(name);
  EXPECT_EQ(error_of(name, in_place), ENOENT);
  File::duplicate(file.descriptor(), name).require_in_place();
}

TEST_F(Files, MapsFromAnyOffset) {
  std::string text(20'000, 'a');
  text[4097] = 'b';
  const File file = File::open(write("file", text), File::Access::read);
  for (const Mode mode : {Mode::copy_on_write, Mode::read_only}) {
    const Region region = map_file(file, 4097, mode);
    EXPECT_EQ(region.size(), text.size() - 4097);
    EXPECT_EQ(region.bytes().text()[0], 'b');
  }
  EXPECT_EQ(map_file(file, 20'000, Mode::read_only).size(), 0U);
  EXPECT_THROW(map_file(file, 20'001, Mode::read_only), FormatError);
  EXPECT_THROW(map_file(file, ~std::uint64_t{0}, Mode::read_only), FormatError);
  EXPECT_EQ(map_file(File::open(write("empty", ""), File::Access::read), 0, Mode::read_only).size(), 0U);
}

TEST_F(Files, MappingOutlivesTheFile) {
  Region region;
  {
    const std::string name = write("file", "content");
    region = map_file(File::open(name, File::Access::read), 0, Mode::read_only);
    std::filesystem::remove(name);
  }
  EXPECT_EQ(region.bytes().text(), "content");
}

TEST_F(Files, WritesReachTheFileInSharedModeOnly) {
  const std::string name = write("file", "content");
  {
    const Region region = map_file(File::open(name, File::Access::read), 0, Mode::copy_on_write);
    region.data()[0] = std::byte{'C'};
    EXPECT_EQ(region.bytes().text(), "Content");
  }
  EXPECT_EQ(content(name), "content");
  {
    const Region region = map_file(File::open(name, File::Access::read_write), 0, Mode::shared);
    region.data()[0] = std::byte{'C'};
  }
  EXPECT_EQ(content(name), "Content");
}

TEST_F(Files, SharedModeNeedsAWritableFile) {
  const File file = File::open(write("file", "content"), File::Access::read);
  EXPECT_THROW(map_file(file, 0, Mode::shared), FileError);
}

}  // namespace
}  // namespace zerocopy::test::file_test
