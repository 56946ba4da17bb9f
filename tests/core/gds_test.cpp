// Tests cuFile's function table, driver, files and batches with the test double of cuFile, which
// enforces its rules (tests/gds).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gds/driver.h"
#include "gds/registered_file.h"
#include "gds/status.h"
#include "support.h"

namespace zerocopy::test::gds_test {
namespace {

constexpr std::uint64_t kBlock = 4096;

// The counters and settings of the test double.
class Numbers {
 public:
  Numbers() : library_(::dlopen(FAKE_CUFILE, RTLD_NOW | RTLD_LOCAL)) { call<void()>("fake_reset")(); }
  void set(const char* name, long value) const { call<void(const char*, long)>("fake_set")(name, value); }
  long get(const char* name) const { return call<long(const char*)>("fake_get")(name); }

 private:
  template <typename Function>
  Function* call(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }
  void* library_;
};

std::shared_ptr<const Library> fake_library() { return Library::open({FAKE_CUFILE}, {FAKE_CUFILE}); }

class GdsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("gds_test." + std::to_string(::getpid()));
    content_.resize(40 * kBlock + 123);
    for (std::size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 7 + i / 251);
    std::ofstream(path_, std::ios::binary) << content_;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(kBlock, kRoom));
    std::memset(memory_, 0, kRoom);
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    std::free(memory_);
    EXPECT_EQ(fake.get("files"), 0);
    EXPECT_EQ(fake.get("buffers"), 0);
    EXPECT_EQ(fake.get("batches"), 0);
    EXPECT_EQ(fake.get("later"), 0);
    EXPECT_EQ(fake.get("drivers"), 0);
    EXPECT_EQ(fake.get("allocations"), 0);
    EXPECT_EQ(fake.get("violations"), 0);
    EXPECT_EQ(descriptors(), descriptors_);
  }

  std::shared_ptr<RegisteredFile> open(int flags = O_RDWR) {
    const int descriptor = ::open(path_.c_str(), flags | O_CLOEXEC);
    struct Closed {
      int descriptor;
      ~Closed() { ::close(descriptor); }
    } const closed{descriptor};
    return RegisteredFile::open(Driver::open(fake_library(), kernel_driver_), descriptor, path_);
  }
  static long descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }
  DeviceMemory at(std::uint64_t offset, std::uint64_t size) const { return {memory_ + offset, size}; }
  std::string_view here(std::uint64_t offset, std::uint64_t size) const {
    return {reinterpret_cast<const char*>(memory_) + offset, size};
  }
  std::string_view there(std::uint64_t offset, std::uint64_t size) const {
    return std::string_view(content_).substr(offset, size);
  }
  std::string on_disk() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static constexpr std::uint64_t kRoom = std::uint64_t{48} << 20U;
  Numbers fake;
  std::filesystem::path path_;
  std::string kernel_driver_ = "/proc";
  std::string content_;
  std::byte* memory_ = nullptr;
  long descriptors_ = descriptors();
};

TEST_F(GdsTest, AnyOffsetAnySizeAnyAddress) {
  const auto file = open();
  for (const std::uint64_t offset : {0UL, 1UL, 100UL, kBlock - 1, kBlock, 3 * kBlock + 512}) {
    for (const std::uint64_t size : {0UL, 1UL, 511UL, kBlock, kBlock + 1, 5 * kBlock, 30 * kBlock + 77}) {
      for (const std::uint64_t place : {0UL, offset, 512UL, kBlock + 3}) {
        std::memset(memory_, 0xEE, 40 * kBlock);
        file->read({offset, at(place, size)});
        ASSERT_EQ(here(place, size), there(offset, size)) << offset << " " << size << " " << place;
        ASSERT_EQ(memory_[place + size], std::byte{0xEE});
        ASSERT_TRUE(place == 0 || memory_[place - 1] == std::byte{0xEE});
      }
    }
  }
}

TEST_F(GdsTest, WritesKeepOtherBytes) {
  const auto file = open();
  for (const std::uint64_t offset : {0UL, 100UL, kBlock, 3 * kBlock + 512}) {
    for (const std::uint64_t size : {1UL, kBlock, kBlock + 1, 9 * kBlock + 77}) {
      for (const std::uint64_t place : {0UL, offset, 512UL}) {
        for (std::uint64_t i = 0; i < size; ++i)
          memory_[place + i] = static_cast<std::byte>(i * 13 + offset + 1);
        file->write({offset, at(place, size)});
        content_.replace(offset, size, here(place, size));
        ASSERT_EQ(on_disk(), content_) << offset << " " << size << " " << place;
      }
    }
  }
}

TEST_F(GdsTest, ShortReadsAndWritesContinue) {
  for (const long most : {4096L, 8192L, 5000L, 100L}) {
    const auto file = open(O_RDONLY);
    fake.set("most", most);
    file->read({512, at(512, 30 * kBlock)});
    ASSERT_EQ(here(512, 30 * kBlock), there(512, 30 * kBlock)) << most;
    file->read({512, at(40 * kBlock + 3, 30 * kBlock)});
    ASSERT_EQ(here(40 * kBlock + 3, 30 * kBlock), there(512, 30 * kBlock)) << most;
  }
  const auto file = open();
  std::memset(memory_, 'x', 20 * kBlock);
  file->write({kBlock, at(0, 20 * kBlock)});
  content_.replace(kBlock, 20 * kBlock, std::string(20 * kBlock, 'x'));
  EXPECT_EQ(on_disk(), content_);
  file->write({50 * kBlock, at(0, 2 * kBlock + 10)});
  EXPECT_EQ(on_disk().size(), 52 * kBlock + 10);
}

TEST_F(GdsTest, EndOfFileThrows) {
  const auto file = open(O_RDONLY);
  for (const std::uint64_t place : {0UL, 512UL}) {
    EXPECT_THROW(file->read({0, at(place, 50 * kBlock)}), FormatError);
    EXPECT_THROW(file->read({100 * kBlock, at(place, 50 * kBlock)}), FormatError);
    const std::vector<RegisteredFile::Piece> pieces{{0, at(place, kBlock)},
                                                    {20 * kBlock, at(place, 40 * kBlock)}};
    EXPECT_THROW(file->read_all(pieces), FormatError);
  }
}

TEST_F(GdsTest, ErrorsOfReads) {
  const auto file = open();
  const RegisteredFile::Piece piece{0, at(0, 8 * kBlock)};
  fake.set("fail_after", 0);
  try {
    file->read(piece);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code().value(), EIO);
    EXPECT_EQ(error.path(), path_);
  }
  EXPECT_THROW(file->write(piece), FileError);
  fake.set("fail_code", 5030);
  try {
    file->read(piece);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.reason(), "cuFileRead: CU_FILE_INTERNAL_ERROR (5030)");
  }
  fake.set("fail_code", 5008);
  EXPECT_THROW(file->read(piece), UnsupportedError);
  EXPECT_THROW(file->write(piece), UnsupportedError);
}

TEST_F(GdsTest, ErrorsOfTheDevice) {
  const auto file = open();
  fake.set("copy", 700);
  EXPECT_THROW(file->read({1, at(1, 100)}), FileError);
  EXPECT_THROW(file->write({1, at(1, 100)}), FileError);
  fake.set("alloc", 2);
  try {
    file->read({0, at(512, 30 * kBlock)});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code().value(), ENOMEM);
  }
}

TEST_F(GdsTest, BuffersAreRegisteredOnceAndUsed) {
  const auto file = open(O_RDONLY);
  Driver& driver = file->driver();
  driver.register_buffer(at(0, 64 * kBlock));
  driver.register_buffer(at(0, 64 * kBlock));
  EXPECT_EQ(fake.get("registrations"), 1);
  EXPECT_THROW(driver.register_buffer(at(0, kBlock)), UnsupportedError);
  file->read({2 * kBlock, at(5 * kBlock, 3 * kBlock)});
  EXPECT_EQ(fake.get("registered_moves"), 1);
  EXPECT_EQ(here(5 * kBlock, 3 * kBlock), there(2 * kBlock, 3 * kBlock));
  file->read({2 * kBlock, at(62 * kBlock, 3 * kBlock)});  // leaves the buffer
  EXPECT_EQ(fake.get("registered_moves"), 1);
  driver.deregister_buffer(at(0, 64 * kBlock));
  EXPECT_EQ(fake.get("buffers"), 1);
  driver.deregister_buffer(at(0, 64 * kBlock));
  EXPECT_EQ(fake.get("buffers"), 0);
  EXPECT_THROW(driver.deregister_buffer(at(0, 64 * kBlock)), std::invalid_argument);
}

TEST_F(GdsTest, Batches) {
  const auto file = open(O_RDONLY);
  std::vector<RegisteredFile::Piece> pieces;
  for (std::uint64_t i = 0; i < 10; ++i) {
    pieces.push_back({i * 4 * kBlock + i % 2 * 100, at(i * 5 * kBlock + i % 2 * 100, 3 * kBlock + i)});
  }
  pieces.push_back({77, at(60 * kBlock + 1, 20 * kBlock)});  // not equally aligned
  pieces.push_back({0, at(90 * kBlock, 0)});
  const auto check = [&] {
    for (const auto& [offset, memory] : pieces) {
      ASSERT_EQ(here(static_cast<std::uint64_t>(memory.address - memory_), memory.size),
                there(offset, memory.size));
    }
    std::memset(memory_, 0, kRoom);
  };
  file->read_all(pieces);
  check();
  EXPECT_EQ(fake.get("batched"), 10);
  fake.set("most", kBlock);  // each request is completed only partly
  file->read_all(pieces);
  check();
  fake.set("fail_after", 3);  // one request fails, also when it is repeated alone
  EXPECT_THROW(file->read_all(pieces), FileError);
  fake.set("fail_after", -1);
  fake.set("batch_submit", 5035);
  file->read_all(pieces);
  check();
  fake.set("batch_submit", 0);
  fake.set("batch_setup", 5039);
  file->read_all(pieces);
  check();
  fake.set("batch_setup", 0);
  fake.set("batch_status", 5030);
  EXPECT_THROW(file->read_all(pieces), FileError);
  fake.set("batch_status", 0);
  fake.set("batch_stalls", 1);
  EXPECT_THROW(file->read_all(pieces, 0), FileError);
  EXPECT_EQ(fake.get("cancelled"), 2);
}

TEST_F(GdsTest, SmallBatchesAndLargeRequests) {
  fake.set("max_batch", 2);
  content_.assign(36U << 20U, 'a');
  for (std::size_t i = 0; i < content_.size(); i += 1000) content_[i] = static_cast<char>(i / 1000);
  std::ofstream(path_, std::ios::binary) << content_;
  const auto file = open(O_RDONLY);
  const std::vector<RegisteredFile::Piece> pieces{{0, at(0, content_.size())}};
  file->read_all(pieces);
  EXPECT_EQ(here(0, content_.size()), content_);
  EXPECT_EQ(fake.get("batched"), 3);
}

TEST_F(GdsTest, ALibraryWithoutBatchesAndStreams) {
  fake.set("features", 0);
  const auto file = open(O_RDONLY);
  const std::vector<RegisteredFile::Piece> pieces{{0, at(0, kBlock)}, {kBlock, at(kBlock, kBlock)}};
  file->read_all(pieces);
  EXPECT_EQ(here(0, 2 * kBlock), there(0, 2 * kBlock));
  RegisteredFile::Pending pending(file, {0, at(0, 4 * kBlock)}, nullptr);
  pending.wait();
  EXPECT_EQ(here(0, 4 * kBlock), there(0, 4 * kBlock));
  EXPECT_EQ(fake.get("batched") + fake.get("async_reads"), 0);
}

TEST_F(GdsTest, ReadsInAStream) {
  const auto file = open(O_RDONLY);
  auto* const stream = memory_;  // any address
  {
    RegisteredFile::Pending pending(file, {100, at(100, 20 * kBlock)}, stream);
    EXPECT_EQ(fake.get("later"), 1);
    pending.wait();
    EXPECT_EQ(here(100, 20 * kBlock), there(100, 20 * kBlock));
    pending.wait();  // does nothing more
  }
  // The destructor waits.
  { const RegisteredFile::Pending left(file, {0, at(0, 20 * kBlock)}, stream); }
  EXPECT_EQ(fake.get("later"), 0);
  fake.set("most", 5000);
  RegisteredFile::Pending in_part(file, {0, at(0, 20 * kBlock)}, stream);
  in_part.wait();
  EXPECT_EQ(here(0, 20 * kBlock), there(0, 20 * kBlock));
  fake.set("async", 5038);
  RegisteredFile::Pending refused(file, {kBlock, at(0, 20 * kBlock)}, stream);
  refused.wait();
  EXPECT_EQ(here(0, 20 * kBlock), there(kBlock, 20 * kBlock));
  fake.set("async", 0);
  fake.set("fail_after", 0);
  RegisteredFile::Pending failed(file, {0, at(0, 20 * kBlock)}, stream);
  EXPECT_THROW(failed.wait(), FileError);
  RegisteredFile::Pending ended(file, {30 * kBlock, at(0, 20 * kBlock)}, stream);
  fake.set("fail_after", 1L << 40U);
  EXPECT_THROW(ended.wait(), FormatError);
}

TEST_F(GdsTest, RefusalsNameTheirReason) {
  const auto reason = [this] {
    try {
      open();
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  fake.set("init", 100);
  EXPECT_EQ(reason(), "cuInit: CUDA error 100");
  fake.set("init", 0);
  fake.set("devices", 0);
  EXPECT_EQ(reason(), "CUDA has no device");
  fake.set("devices", 1);
  kernel_driver_ = "/proc/driver/none";
  EXPECT_EQ(reason(),
            "/proc/driver/none is missing: load the kernel module nvidia-fs, without which cuFile hangs");
  kernel_driver_ = "/proc";
  fake.set("driver_open", 5033);
  EXPECT_EQ(reason(), "cuFileDriverOpen: CU_FILE_NVFS_SETUP_ERROR (5033)");
  fake.set("driver_open", 5011);
  fake.set("driver_open_cuda", 3);
  EXPECT_EQ(reason(), "cuFileDriverOpen: CU_FILE_CUDA_DRIVER_ERROR (5011), CUDA error 3");
  fake.set("driver_open", 0);
  fake.set("properties", 5002);
  EXPECT_EQ(reason(), "cuFileDriverGetProperties: CU_FILE_DRIVER_INVALID_PROPS (5002)");
  fake.set("properties", 0);
  fake.set("handle_register", 5008);
  EXPECT_EQ(reason(), "cuFileHandleRegister: CU_FILE_IO_NOT_SUPPORTED (5008)");
  fake.set("handle_register", 5031);
  EXPECT_THROW(open(), FileError);
}

TEST_F(GdsTest, MissingLibraries) {
  EXPECT_THROW(Library::open({"/nonexistent/libcuda.so.1"}, {FAKE_CUFILE}), UnsupportedError);
  EXPECT_THROW(Library::open({FAKE_CUFILE}, {"/nonexistent/libcufile.so.0"}), UnsupportedError);
  EXPECT_THROW(Library::open({FAKE_CUFILE}, {}), UnsupportedError);
  EXPECT_THROW(Library::open({FAKE_CUFILE}, {"libm.so.6"}), UnsupportedError);  // another library
  EXPECT_EQ(Library::open({FAKE_CUFILE}, {"/nonexistent", FAKE_CUFILE})->path(), FAKE_CUFILE);
}

}  // namespace
}  // namespace zerocopy::test::gds_test
