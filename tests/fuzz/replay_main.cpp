// Passes each file of the named folders, or each named file, to a target without libFuzzer. So
// seeds and old crashes run with any compiler.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const fs::path named(argv[i]);
    if (fs::is_directory(named)) {
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
  }
  std::printf("%zu files replayed\n", files.size());
  return files.empty() ? 1 : 0;
}
