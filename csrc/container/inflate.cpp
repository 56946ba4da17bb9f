#include "container/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <vector>

namespace zerocopy {
namespace {

constexpr std::uint64_t kInputChunk = std::uint64_t{256} * 1024;
constexpr int kRawDeflate = -MAX_WBITS;

class Stream {
 public:
  Stream() {
    if (::inflateInit2(&z_, kRawDeflate) != Z_OK) throw std::bad_alloc();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { ::inflateEnd(&z_); }

  z_stream& operator*() noexcept { return z_; }
  z_stream* operator->() noexcept { return &z_; }

 private:
  z_stream z_{};
};

[[noreturn]] void fail(Extent deflated, const std::string& reason) {
  throw FormatError("deflated record at " + hex(deflated.offset) + ": " + reason);
}

}  // namespace

Region inflate(const Source& source, Extent deflated, std::uint64_t size) {
  if (!inflated_size_is_possible(deflated.size, size)) {
    fail(deflated, std::to_string(deflated.size) + " bytes cannot inflate to " + std::to_string(size));
  }
  // One byte more than `size`, to detect a stream that is too long.
  const Region room = Region::allocate(static_cast<std::size_t>(size) + 1);
  std::vector<std::byte> input(static_cast<std::size_t>(std::min(kInputChunk, deflated.size)));
  Stream stream;
  std::uint64_t consumed = 0;
  std::uint64_t produced = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    if (stream->avail_in == 0) {
      const std::uint64_t chunk = std::min<std::uint64_t>(input.size(), deflated.size - consumed);
      if (chunk == 0) fail(deflated, "the stream is truncated");
      source.read(deflated.offset + consumed, {input.data(), static_cast<std::size_t>(chunk)});
      stream->next_in = reinterpret_cast<Bytef*>(input.data());  // NOLINT: zlib's bytes
      stream->avail_in = static_cast<uInt>(chunk);
      consumed += chunk;
    }
    const std::uint64_t space =
        std::min<std::uint64_t>(size + 1 - produced, std::numeric_limits<uInt>::max());
    if (space == 0)
      fail(deflated, "inflates to more than the " + std::to_string(size) + " bytes of the directory");
    stream->next_out = reinterpret_cast<Bytef*>(room.data() + produced);  // NOLINT: zlib's bytes
    stream->avail_out = static_cast<uInt>(space);
    status = ::inflate(&*stream, Z_NO_FLUSH);
    produced += space - stream->avail_out;
    if (status == Z_BUF_ERROR) status = Z_OK;  // more input or more room is needed, and comes above
  }
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
  if (status != Z_STREAM_END) fail(deflated, stream->msg != nullptr ? stream->msg : "broken stream");
  if (produced != size) {
    fail(deflated, "inflates to " + std::to_string(produced) + " bytes, expected " + std::to_string(size));
  }
  if (stream->avail_in != 0 || consumed != deflated.size) fail(deflated, "has bytes after the stream");
  return room.slice({0, size});
}

}  // namespace zerocopy
