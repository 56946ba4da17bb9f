#include "python/object_source.h"

#include <cstring>
#include <string>
#include <utility>

#include "python/buffer.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr unsigned kFarThreads = 8;  // requests in flight at most

class ObjectSource final : public Source {
 public:
  explicit ObjectSource(const py::object& reader)
      : ObjectSource(reader, reader.attr("is_far").cast<bool>()) {}
  ObjectSource(const ObjectSource&) = delete;
  ObjectSource& operator=(const ObjectSource&) = delete;
  ~ObjectSource() override {
    release_with_gil([this] { reader_.release().dec_ref(); });
    reader_.release();  // if the interpreter is ending, the object is leaked
  }

  std::uint64_t size() const noexcept override { return size_; }
  bool is_far() const noexcept override { return is_far_; }
  void require_unchanged() const override {
    const GilTaken gil;
    reader_.attr("require_unchanged")();
  }
  void require_in_place() const override {}  // an object has no path that could lead elsewhere

 private:
  ObjectSource(const py::object& reader, bool is_far)
      : Source({is_far ? kFarThreads : 1, {}}),
        reader_(reader),
        size_(reader_.attr("size").cast<std::uint64_t>()),
        is_far_(is_far) {}

  void fill(std::uint64_t offset, std::span<std::byte> into) const override {
    if (into.empty()) return;
    const GilTaken gil;
    const py::object content = reader_.attr("read")(offset, into.size());
    const Region bytes = region_of_buffer(content.ptr(), Access::any);
    if (bytes.size() != into.size()) {
      throw FormatError("the file object gave " + std::to_string(bytes.size()) + " bytes at " + hex(offset) +
                        ", not " + std::to_string(into.size()));
    }
    std::memcpy(into.data(), bytes.data(), into.size());
  }

  py::object reader_;
  std::uint64_t size_;
  bool is_far_;
};

}  // namespace

std::shared_ptr<const Source> source_of_object(const py::object& reader) {
  return std::make_shared<const ObjectSource>(reader);
}

std::shared_ptr<const Source> source_of(const py::object& file, const FileName& name) {
  if (!py::isinstance<py::int_>(file)) return source_of_object(file);
  return std::make_shared<const FileSource>(File::duplicate(file.cast<int>(), name.bytes), 0);
}

}  // namespace zerocopy
