#include "python/stream_target.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20U;
constexpr std::size_t kSmall = std::size_t{1} << 16U;
constexpr int kRaised = -1;

}  // namespace

template <typename Function>
int StreamTarget::guarded(Function function) noexcept {
  try {
    function();
    return 0;
  } catch (...) {
    thrown_ = std::current_exception();
    return kRaised;
  }
}

int StreamTarget::append(std::span<const ByteSpan> parts) noexcept {
  return guarded([&] {
    for (const ByteSpan part : parts) write(part);
  });
}

int StreamTarget::skip(std::uint64_t size) noexcept {
  return guarded([&] {
    const std::string zeros(static_cast<std::size_t>(std::min<std::uint64_t>(size, kPiece)), '\0');
    while (size > 0) {
      const std::uint64_t piece = std::min<std::uint64_t>(size, zeros.size());
      write(ByteSpan(zeros).subspan({0, piece}));
      size -= piece;
    }
  });
}

int StreamTarget::share(int /*source*/, Extent /*extent*/, bool& shared) noexcept {
  shared = false;
  return 0;
}

int StreamTarget::copy(int /*source*/, Extent /*extent*/, std::uint64_t& done) noexcept {
  done = 0;
  return 0;
}

void StreamTarget::rethrow() {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

void StreamTarget::write(ByteSpan bytes) {
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), kPiece);
    // An object may keep the bytes that it is given. The memory of small parts is soon reused, so copy those.
    const py::object piece = size <= kSmall
                                 ? py::object(py::bytes(bytes.text().data(), size))
                                 : py::memoryview::from_memory(bytes.data(), static_cast<py::ssize_t>(size));
    const py::object result = write_(piece);
    std::size_t done = size;
    if (!result.is_none()) {
      done = std::min(result.cast<std::size_t>(), size);
    } else if (py::isinstance(file_, py::module_::import("io").attr("RawIOBase"))) {
      // A raw file returns None if it would block, and has written nothing. Other objects return None anyway.
      errno = EAGAIN;
      PyErr_SetFromErrno(PyExc_OSError);
      throw py::error_already_set();
    }
    bytes = bytes.subspan({done, bytes.size() - done});
  }
}

}  // namespace zerocopy
