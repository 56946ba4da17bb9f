// Passes each file of the named folders, or each named file, to a target without libFuzzer. So
// seeds and old crashes run with any compiler. After --sweep, every beginning of each file and
// every changed byte run too: under a sanitizer, no read may leave the input.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

constexpr std::size_t kMaxSwept = 4096;  // larger files run as they are

void sweep(std::vector<std::uint8_t> data) {
  if (data.size() > kMaxSwept) return;
  for (std::size_t at = 0; at < data.size(); ++at) {
    LLVMFuzzerTestOneInput(data.data(), at);
    for (const std::uint8_t mask : std::initializer_list<std::uint8_t>{0x01, 0x20, 0xFF}) {
      data[at] ^= mask;
      LLVMFuzzerTestOneInput(data.data(), data.size());
      data[at] ^= mask;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  bool sweeps = false;
  for (int i = 1; i < argc; ++i) {
    const fs::path named(argv[i]);
    if (named == "--sweep") {
      sweeps = true;
    } else if (fs::is_directory(named)) {
      std::copy(fs::directory_iterator(named), fs::directory_iterator(), std::back_inserter(files));
    } else if (fs::exists(named)) {  // targets without crashes have no folder
      files.push_back(named);
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    // Printed first, so the last printed file is the failing one.
    std::fprintf(stderr, "%s\n", file.c_str());
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    const std::vector<std::uint8_t> data(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(data.data(), data.size());
    if (sweeps) sweep(data);
  }
  std::printf("%zu files replayed\n", files.size());
  return files.empty() ? 1 : 0;
}
