#include "python/saving.h"

#include <fcntl.h>
#include <poll.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>

#include "container/archive_writer.h"
#include "io/copied_process.h"
#include "io/new_file.h"
#include "memory/pages.h"
#include "python/buffer.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/stream_target.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr std::size_t kRoom = std::size_t{1} << 16U;

void require(int error, const std::string& name) {
  // The memory that is written lies in a mapping, behind the end of the mapped file.
  if (error == EFAULT) error = ESTALE;
  if (error == ESTALE) throw FileError(error, name, "a file that is mapped was cut");
  if (error != 0) throw FileError(error, name);
}

// A new file for Python, with a buffer for small writes, because torch.save writes headers one by one.
class PythonFile {
 public:
  PythonFile(FileName target, NewFileOptions options) : file_(std::move(target.bytes), std::move(options)) {}

  std::size_t write(const py::object& buffer) {
    const Region region = region_of_buffer(buffer.ptr(), Access::any);
    const ByteSpan bytes = region.bytes();
    const GilReleased released;
    if (waiting_.size() + bytes.size() > kRoom) flush();
    if (bytes.size() > kRoom) {
      require(file_.append({&bytes, 1}), file_.target());
    } else {
      waiting_.append(bytes.text());
    }
    return bytes.size();
  }

  std::uint64_t copy(int source, std::uint64_t offset, std::uint64_t size) {
    const GilReleased released;
    flush();
    std::uint64_t done = 0;
    require(file_.copy(source, {offset, size}, done), file_.target());
    return done;
  }

  void flush() {
    const ByteSpan bytes(waiting_);
    require(file_.append({&bytes, 1}), file_.target());
    waiting_.clear();
  }

  void sync() {
    const GilReleased released;
    flush();
    require(file_.sync(), file_.target());
  }

  static std::vector<std::string> lost_of(unsigned lost) {
    std::vector<std::string> found;
    if ((lost & kLostOwner) != 0) found.emplace_back("the owner");
    if ((lost & kLostGroup) != 0) found.emplace_back("the group");
    if ((lost & kLostList) != 0) found.emplace_back("the access control list");
    return found;
  }

  NewFile& file() noexcept { return file_; }

 private:
  NewFile file_;
  std::string waiting_;
};

using Named = std::pair<PythonFile*, FileName>;

// Gives new files their names one after the other, all of them or none, and then deletes files. For Python
// this is one instruction, so a signal handler cannot interrupt it between two names. Returns for each file
// what it lacks of the file that it replaces.
std::vector<std::vector<std::string>> take_names(const std::vector<Named>& files,
                                                 const std::vector<FileName>& old) {
  const bool gives_way = !files.empty() && files.back().first->file().gives_way();
  if (!gives_way) {
    const GilReleased released;
    for (auto each = files.begin(); each != files.end(); ++each) {
      const int error = each->first->file().take_name(each->second.bytes.c_str());
      if (error == 0) continue;
      for (auto given = files.begin(); given != each; ++given) {
        given->first->file().drop_name(given->second.bytes.c_str());
      }
      require(error, each->second.bytes);
    }
    for (const FileName& path : old) ::unlink(path.bytes.c_str());
  }
  std::vector<std::vector<std::string>> lost;
  for (const Named& each : files) lost.push_back(PythonFile::lost_of(each.first->file().lost()));
  return lost;
}

// Progress in memory that a copy of the process shares.
struct Report {
  enum State : int { running, finished, failed };

  std::uint64_t written = 0;
  int state = running;
  int error = 0;
  unsigned lost = 0;
};

class PythonWriter {
 public:
  PythonWriter(ArchivePlan& plan, const py::object& target)
      : memory_(allocate_shared(sizeof(Report))),
        report_(new (memory_.data()) Report()),
        plan_(plan),
        file_(py::isinstance<PythonFile>(target) ? target.cast<PythonFile*>() : nullptr),
        stream_(file_ == nullptr ? std::make_unique<StreamTarget>(target) : nullptr),
        writer_(plan, file_ == nullptr ? static_cast<Target&>(*stream_) : file_->file(), report_->written) {}

  // Returns whether everything was written.
  bool write(std::uint64_t limit) {
    int error = 0;
    if (stream_) {
      error = writer_.run(limit);
      stream_->rethrow();
    } else {
      const GilReleased released;
      error = writer_.run(limit);
    }
    require(error, file_ == nullptr ? "" : file_->file().target());
    return writer_.is_done();
  }

  // Begins to write, sync and name the file in a copy of this process. `earlier` are descriptors that
  // become readable when the earlier writers of that file have ended.
  pid_t begin_in_copy(std::vector<int> earlier) {
    earlier_ = std::move(earlier);
    std::vector<int> kept = plan_.sources();
    kept.push_back(file_->file().descriptor());
    kept.insert(kept.end(), earlier_.begin(), earlier_.end());
    const pid_t process = run_in_copy(
        [](void* save) noexcept { return static_cast<PythonWriter*>(save)->write_in_copy(); }, this, kept);
    file_->file().leave_to_copy();
    return process;
  }

  py::tuple report() const {
    const int state = std::atomic_ref(report_->state).load(std::memory_order_acquire);
    return py::make_tuple(state == Report::finished, report_->error, PythonFile::lost_of(report_->lost));
  }

  std::uint64_t written() const { return std::atomic_ref(report_->written).load(std::memory_order_relaxed); }
  bool wants_memory() const { return writer_.wants_memory(); }
  void provide(std::uint64_t address) { writer_.provide(address); }
  void provide_part(int source, std::uint64_t offset, std::optional<std::uint32_t> known) {
    writer_.provide(source, offset, known);
  }

 private:
  int write_in_copy() noexcept {
    NewFile& file = file_->file();
    file.adopt();
    int error = writer_.run(~std::uint64_t{0});
    if (error == 0) error = file.sync();
    for (const int earlier : earlier_) {
      pollfd asked{.fd = earlier, .events = POLLIN, .revents = 0};
      while (::poll(&asked, 1, -1) < 0 && errno == EINTR) {
      }
    }
    if (error == 0) error = file.take_name();
    if (error != 0) file.abandon();
    report_->error = error;
    report_->lost = file.lost();
    std::atomic_ref(report_->state)
        .store(error == 0 ? Report::finished : Report::failed, std::memory_order_release);
    return error == 0 ? 0 : 1;
  }

  Region memory_;
  Report* report_;
  ArchivePlan& plan_;
  PythonFile* file_ = nullptr;
  std::unique_ptr<StreamTarget> stream_;
  ArchiveWriter writer_;
  std::vector<int> earlier_;
};

// Pieces of memory for an open file, which then gets its final name.
struct PiecesOfFile {
  int descriptor;
  std::vector<std::pair<std::uint64_t, Region>> pieces;  // with the offset of each
  std::string part;
  std::string name;

  int write() const noexcept {
    for (const auto& [offset, region] : pieces) {
      const std::string_view bytes = region.bytes().text();
      for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t size =
            ::pwrite(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
        if (size < 0 && errno == EINTR) continue;
        if (size <= 0) return abandoned();
        done += static_cast<std::size_t>(size);
      }
    }
    return ::rename(part.c_str(), name.c_str()) == 0 ? 0 : abandoned();
  }

  int abandoned() const noexcept {
    ::unlink(part.c_str());
    return 1;
  }
};

// Starts a copy of this process that writes pieces of its memory to an open file, and gives the file its
// final name. If that fails, the copy removes the file. Returns the copy's process id.
pid_t write_in_copy(int descriptor, const std::vector<std::pair<std::uint64_t, py::object>>& pieces,
                    const FileName& part, const FileName& name) {
  PiecesOfFile file{descriptor, {}, part.bytes, name.bytes};
  for (const auto& [offset, buffer] : pieces) {
    file.pieces.emplace_back(offset, region_of_buffer(buffer.ptr(), Access::any));
  }
  return run_in_copy([](void* given) noexcept { return static_cast<PiecesOfFile*>(given)->write(); }, &file,
                     {&descriptor, 1});
}

// A descriptor that closes with the last reference to it, also after an exception.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(number_); }

  // Opens a file. Throws FileError.
  static std::unique_ptr<Descriptor> open(const std::string& path, int flags, mode_t mode) {
    const int number = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (number < 0) throw FileError(errno, path);
    return std::make_unique<Descriptor>(number);
  }

  // Returns a descriptor that becomes readable when a process ends. Throws FileError.
  static std::unique_ptr<Descriptor> of_process(pid_t process) {
    const long number = ::syscall(SYS_pidfd_open, process, 0U);
    if (number < 0) throw FileError(errno, "");
    return std::make_unique<Descriptor>(static_cast<int>(number));
  }

  int number() const noexcept { return number_; }

 private:
  int number_;
};

NewFileOptions options_of(const std::optional<FileName>& like, bool has_name, bool is_new, bool syncs) {
  return {.like = like ? like->bytes : "", .has_name = has_name, .is_new = is_new, .syncs = syncs};
}

}  // namespace

void register_saving(py::module_& module) {
  py::class_<PythonFile>(module, "NewFile")
      .def(py::init([](FileName target, const std::optional<FileName>& like, bool has_name, bool is_new,
                       bool syncs) {
             return std::make_unique<PythonFile>(std::move(target),
                                                 options_of(like, has_name, is_new, syncs));
           }),
           py::arg("target"), py::arg("like") = py::none(), py::arg("has_name") = false,
           py::arg("is_new") = false, py::arg("syncs") = true)
      .def_property_readonly("descriptor", [](PythonFile& self) { return self.file().descriptor(); })
      .def_property_readonly("path", [](PythonFile& self) { return FileName{self.file().path()}; })
      .def("fileno", [](PythonFile& self) { return self.file().descriptor(); })
      .def("write", &PythonFile::write, py::arg("content"))
      .def("copy", &PythonFile::copy, py::arg("source"), py::arg("offset"), py::arg("size"))
      .def("flush", &PythonFile::flush, py::call_guard<GilReleased>())
      .def("sync", &PythonFile::sync)
      .def("give_way", [](PythonFile& self) { self.file().give_way(); })
      .def("close", [](PythonFile& self) { self.file().abandon(); });
  module.def("take_names", &take_names, py::arg("files"), py::arg("old") = std::vector<FileName>{});
  py::class_<Descriptor>(module, "Descriptor")
      .def_static("open", &Descriptor::open, py::arg("path"), py::arg("flags") = O_RDONLY | O_NONBLOCK,
                  py::arg("mode") = 0)
      .def_static("of_process", &Descriptor::of_process, py::arg("process"))
      .def("fileno", &Descriptor::number);
  module.def("write_in_copy", &write_in_copy, py::arg("descriptor"), py::arg("pieces"), py::arg("part"),
             py::arg("name"));
  py::class_<ArchivePlan>(module, "ArchivePlan")
      .def(py::init<std::uint64_t, bool>(), py::arg("alignment"), py::arg("checksums"))
      .def(
          "record",
          [](ArchivePlan& self, const std::string& name, const py::bytes& content) {
            self.add(name, ByteSpan(std::string_view(content)));
          },
          py::arg("name"), py::arg("content"))
      .def(
          "memory",
          [](ArchivePlan& self, const std::string& name, std::uint64_t size, std::uint64_t address) {
            return self.add(name, {.kind = StepKind::memory, .begin = address, .size = size});
          },
          py::arg("name"), py::arg("size"), py::arg("address") = 0)
      .def(
          "part",
          [](ArchivePlan& self, const std::string& name, std::uint64_t size, int source, std::uint64_t offset,
             std::optional<std::uint32_t> known) {
            return self.add(
                name,
                {.kind = StepKind::part, .begin = offset, .size = size, .source = source, .known = known});
          },
          py::arg("name"), py::arg("size"), py::arg("source"), py::arg("offset"), py::arg("known"))
      .def(
          "hole",
          [](ArchivePlan& self, const std::string& name, std::uint64_t size) {
            return self.add(name, {.kind = StepKind::hole, .size = size});
          },
          py::arg("name"), py::arg("size"))
      .def("finish", &ArchivePlan::finish)
      .def_property_readonly("last_checksum", &ArchivePlan::last_checksum);
  py::class_<PythonWriter>(module, "ArchiveWriter")
      .def(py::init<ArchivePlan&, const py::object&>(), py::arg("plan"), py::arg("target"),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("write", &PythonWriter::write, py::arg("limit"))
      .def("provide", &PythonWriter::provide, py::arg("address"))
      .def("provide_part", &PythonWriter::provide_part, py::arg("source"), py::arg("offset"),
           py::arg("known"))
      .def("begin_in_copy", &PythonWriter::begin_in_copy, py::arg("earlier"))
      .def("report", &PythonWriter::report)
      .def_property_readonly("wants_memory", &PythonWriter::wants_memory)
      .def_property_readonly("written", &PythonWriter::written);
}

}  // namespace zerocopy
