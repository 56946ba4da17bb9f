// Raw deflate of a claimed size, compared with zlib's own inflate in one call.
//
//   claimed size, 4 bytes │ the stream
#include <zlib.h>

#include <vector>

#include "container/inflate.h"
#include "fuzz.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::size_t kHead = sizeof(std::uint32_t);

// Returns whether the whole stream gives exactly that many bytes, written to `into`.
bool zlib_inflates(ByteSpan stream, std::vector<Bytef>& into) {
  z_stream z{};
  if (::inflateInit2(&z, -MAX_WBITS) != Z_OK) std::abort();
  std::vector<Bytef> input(stream.size());
  if (!input.empty()) std::memcpy(input.data(), stream.data(), stream.size());
  z.next_in = input.data();
  z.avail_in = static_cast<uInt>(input.size());
  const std::size_t size = into.size();
  into.resize(size + 1);
  z.next_out = into.data();
  z.avail_out = static_cast<uInt>(into.size());
  const bool ended = ::inflate(&z, Z_FINISH) == Z_STREAM_END && z.avail_in == 0 && z.total_out == size;
  ::inflateEnd(&z);
  return ended;
}

void run(const std::uint8_t* data, std::size_t size) {
  std::uint32_t claimed = 0;
  std::memcpy(&claimed, data, kHead);
  const auto source = source_of(data, size);
  const Region stream = source->read({kHead, size - kHead});

  Region inflated;
  const bool ours = [&] {
    const TimeLimit time(size);
    const MemoryLimit memory(kMiB + 1100 * std::uint64_t{size});
    return succeeds([&] { inflated = inflate(*source, {kHead, size - kHead}, claimed); });
  }();
  if (!inflated_size_is_possible(size - kHead, claimed)) {
    check(!ours, "an impossible size is refused");
    return;
  }
  std::vector<Bytef> expected(claimed);
  check(ours == zlib_inflates(stream.bytes(), expected), "what zlib inflates is inflated, and nothing else");
  if (!ours) return;
  check(inflated.size() == claimed, "as many bytes as claimed");
  check(claimed == 0 || std::memcmp(inflated.data(), expected.data(), claimed) == 0, "zlib's bytes");
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size >= zerocopy::fuzz::kHead) zerocopy::fuzz::run(data, size);
  return 0;
}
