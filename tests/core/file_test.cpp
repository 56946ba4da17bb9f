#include "memory/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "memory/mapping.h"
#include "support.h"

namespace zerocopy::test {
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
  static int refusal(const std::string& path) {
    try {
      File::open(path, File::Access::read);
    } catch (const FileError& error) {
      EXPECT_EQ(error.path(), path);
      return error.code().value();
    }
    return 0;
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

TEST_F(Files, RefusesWhatIsNoFile) {
  EXPECT_EQ(refusal(path("missing")), ENOENT);
  EXPECT_EQ(refusal(path("")), EISDIR);
  EXPECT_EQ(refusal("/dev/zero"), EINVAL);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("fifo")), EINVAL);  // and does not wait for a writer
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

TEST_F(Files, SourceThatShrinks) {
  const std::string name = write("file", std::string(10'000, 'x'));
  const FileSource source(File::open(name, File::Access::read), 0);
  std::filesystem::resize_file(name, 10);
  EXPECT_THROW(source.read(Extent{5000, 10}), FormatError);
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
}  // namespace zerocopy::test
