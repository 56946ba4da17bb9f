// libcuda and libcufile, opened at run time, so the build needs no CUDA. A missing library is
// reported with its reason.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gds/abi.h"

namespace zerocopy {

class Library {
 public:
  // Opens the first loadable library of each list. The dynamic linker looks up names without a
  // slash; environment variables are ignored. Opens libcuda first: some releases of libcufile,
  // which loads it too, hang if it is missing. Throws UnsupportedError that names the missing
  // library.
  static std::shared_ptr<const Library> open(const std::vector<std::string>& cuda,
                                             const std::vector<std::string>& cufile);

  const abi::Functions& call() const noexcept { return functions_; }
  const std::string& path() const noexcept { return path_; }  // of libcufile
  bool has_batches() const noexcept { return functions_.cuFileBatchIODestroy != nullptr; }
  bool has_streams() const noexcept { return functions_.cuFileReadAsync != nullptr; }

 private:
  Library() = default;

  abi::Functions functions_{};
  std::string path_;
};

}  // namespace zerocopy
