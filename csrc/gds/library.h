// libcuda and libcufile, opened while the program runs: nothing of CUDA is needed to build, and where it is
// not installed that is a reason that can be told.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gds/abi.h"

namespace zerocopy {

class Library {
 public:
  // The first of each list that can be loaded. A name without a slash is looked up by the dynamic linker; the
  // environment is not asked. libcuda comes first: libcufile loads it too, and some of its releases never
  // return from opening their driver where there is none. Throws UnsupportedError with what is missing.
  static std::shared_ptr<const Library> open(const std::vector<std::string>& cuda,
                                             const std::vector<std::string>& cufile);

  const abi::Functions& call() const noexcept { return functions_; }
  const std::string& path() const noexcept { return path_; }  // of libcufile, where it was found
  bool has_batches() const noexcept { return functions_.cuFileBatchIODestroy != nullptr; }
  bool has_streams() const noexcept { return functions_.cuFileReadAsync != nullptr; }

 private:
  Library() = default;

  abi::Functions functions_{};
  std::string path_;
};

}  // namespace zerocopy
