// The core's list of element types, which needs no torch.
//
// Names are those of torch.<name> in 1.13 to 2.15. Code in binding/ adds the types of later
// releases, and knows which types the running release has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zerocopy {

struct DType {
  std::string_view name;     // "float32": torch.float32
  std::string_view storage;  // "FloatStorage"; empty: only as UntypedStorage
  std::uint8_t size;         // bytes per element
  std::uint8_t swap;         // bytes of the unit that byte order swaps (half of a complex)
  bool differentiable;       // may require grad
  bool quantized;
  // The storage class in TorchScript's pickles, if torch.save has none.
  std::string_view script = {};

  bool is_complex() const noexcept { return swap != size; }
};

// Adds an element type, unless its name exists. Not thread-safe: call this before any reading.
void add_dtype(const std::string& name, std::uint8_t size, bool is_complex, bool differentiable);

// The pointers stay valid, so dtypes compare by address.
const DType* dtype_by_name(std::string_view name);
const DType* dtype_by_storage(std::string_view storage_class);
const DType* dtype_by_script(std::string_view storage_class);

// UntypedStorage: bytes without a type. Sizes count bytes.
const DType* untyped();

}  // namespace zerocopy
