#include "python/uninterrupted_file.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "memory/errors.h"
#include "python/buffer.h"
#include "python/file_name.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr std::size_t kRoom = std::size_t{1} << 16;

// A file to write to, of a descriptor that it does not own.
class UninterruptedFile {
 public:
  UninterruptedFile(int descriptor, FileName name) : descriptor_(descriptor), name_(std::move(name.bytes)) {}

  std::size_t write(const py::object& buffer) {
    const Region region = region_of_buffer(buffer.ptr(), Access::any);
    const ByteSpan bytes = region.bytes();
    const GilReleased released;
    if (waiting_.size() + bytes.size() > kRoom) write_waiting();
    if (bytes.size() > kRoom) {
      write_out(bytes);
    } else {
      waiting_.append(bytes.text());
    }
    return bytes.size();
  }

  void flush() {
    const GilReleased released;
    write_waiting();
  }

  int fileno() const noexcept { return descriptor_; }

 private:
  void write_waiting() {
    write_out(ByteSpan(waiting_));
    waiting_.clear();
  }

  void write_out(ByteSpan bytes) const {
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t size = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) throw FileError(size < 0 ? errno : ENOSPC, name_);
      done += static_cast<std::size_t>(size);
    }
  }

  int descriptor_;
  std::string name_;
  std::string waiting_;
};

}  // namespace

void register_uninterrupted_file(py::module_& module) {
  py::class_<UninterruptedFile>(module, "UninterruptedFile")
      .def(py::init<int, FileName>(), py::arg("descriptor"), py::arg("name"))
      .def("write", &UninterruptedFile::write, py::arg("content"))
      .def("flush", &UninterruptedFile::flush)
      .def("fileno", &UninterruptedFile::fileno);
}

}  // namespace zerocopy
