// A Python object with a `write` method, as the target of an archive.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "io/target.h"

namespace zerocopy {

// Call its functions with the GIL. -1 in place of an errno stands for a Python exception.
class StreamTarget final : public Target {
 public:
  explicit StreamTarget(const pybind11::object& file) : write_(file.attr("write")), file_(file) {}

  int append(std::span<const ByteSpan> parts) noexcept override;
  int skip(std::uint64_t size) noexcept override;
  int share(int source, Extent extent, bool& shared) noexcept override;
  int copy(int source, Extent extent, std::uint64_t& done) noexcept override;

  // Throws the exception that a function has met.
  void rethrow();

 private:
  template <typename Function>
  int guarded(Function function) noexcept;
  void write(ByteSpan bytes);

  pybind11::object write_;
  pybind11::object file_;
  std::exception_ptr thrown_;
};

}  // namespace zerocopy
