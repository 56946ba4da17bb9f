// The cost of the core's checks, repeated: those that a loader of trusted files could omit.
//
//   checks FILE [ROUNDS]      prints medians in microseconds, as JSON
//
// Where a check cannot be told from work that has to be done, the whole counts: the directory is read (its
// bytes are needed) and then parsed, its names, its layout and its fields checked, in one number; so the sum
// is an upper bound.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "checkpoint/archive.h"
#include "container/zip.h"
#include "pickle/geometry.h"
#include "pickle/machine.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

volatile std::size_t sink;  // so that nothing is left out as unused

double median_us(int rounds, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds) / 2];
}

// Every tensor and every text that the root holds, each once.
struct Parts {
  explicit Parts(const Document& document) : seen_(document.slots()) { visit(document.root); }

  std::vector<const Tensor*> tensors;
  std::vector<ByteSpan> texts;

 private:
  void visit(const Value& value) {
    if (!value.is_node() || seen_[value.node().slot]) return;
    seen_[value.node().slot] = true;
    if (value.is(Kind::tensor)) tensors.push_back(&value.as<Tensor>());
    if (value.is(Kind::text)) texts.push_back(value.as<Blob>().bytes);
    if (value.is(Kind::parameter)) visit(value.as<Parameter>().data);
    if (value.is(Kind::list) || value.is(Kind::tuple)) {
      for (const Value& item : value.as<Sequence>().items) visit(item);
    }
    if (value.is_mapping()) {
      for (const auto& [key, item] : value.as<Mapping>().items) {
        visit(key);
        visit(item);
      }
      visit(value.as<Mapping>().state);
    }
  }

  std::vector<bool> seen_;
};

void check_geometry(const std::vector<const Tensor*>& tensors) {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  for (const Tensor* tensor : tensors) {
    sizes.clear();
    strides.clear();
    for (const Value& size : tensor->size->items) sizes.push_back(size.integer());
    for (const Value& stride : tensor->stride->items) strides.push_back(stride.integer());
    sink = why_not_a_view(tensor->storage->numel, tensor->dtype->size, tensor->offset, sizes, strides).size();
  }
}

int run(const char* path, int rounds) {
  const auto open = [path] {
    return std::make_shared<const FileSource>(File::open(path, File::Access::read), 0);
  };
  const auto source = open();
  const auto archive = Archive::open(source, nullptr, Mode::copy_on_write);
  const Document document = archive->document();
  const Parts parts(document);
  const Zip zip(source);
  const std::uint64_t directory =
      100 * zip.count();  // about what its bytes are, zip64 fields and names included

  const double whole = median_us(rounds, [&] {
    const auto again = Archive::open(open(), nullptr, Mode::copy_on_write);
    const Document read = again->document();
    sink = again->records(wanted_by(read)).size();
  });
  const double parsed = median_us(rounds, [&] { sink = Zip(source).count(); }) - median_us(rounds, [&] {
                          sink = source->read({source->size() - directory, directory}).size();
                        });
  const double headers = median_us(rounds, [&] {
    for (std::size_t i = 0; i < zip.count(); ++i) sink = zip.record(i).size;
  });
  std::vector<Extent> heads;  // as many bytes as a header and its name have, where it lies
  for (std::size_t i = 0; i < zip.count(); ++i) {
    const std::uint64_t size = 36 + zip.root().size() + zip.name(i).size();
    const std::uint64_t data = zip.record(i).extent.offset;
    heads.push_back({data - std::min(data, size), size});
  }
  std::vector<std::byte> head(1024);
  const double reads = median_us(rounds, [&] {
    for (const Extent at : heads)
      source->read(at.offset, std::span(head).first(std::min(head.size(), at.size)));
  });
  const double geometry = median_us(rounds, [&] { check_geometry(parts.tensors); });
  const double texts = median_us(rounds, [&] {
    for (const ByteSpan text : parts.texts) sink = is_utf8(text, Surrogates::accept) ? 1 : 0;
  });
  std::printf(
      "{\"native\": %.1f, \"directory\": %.1f, \"headers\": %.1f, \"geometry\": %.1f, \"texts\": %.1f}\n",
      whole, std::max(0.0, parsed), std::max(0.0, headers - reads), geometry, texts);
  return 0;
}

}  // namespace
}  // namespace zerocopy

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: checks FILE [ROUNDS]\n");
    return 2;
  }
  try {
    return zerocopy::run(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 101);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checks: %s\n", error.what());
    return 1;
  }
}
