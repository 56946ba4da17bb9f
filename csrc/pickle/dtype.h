// Element types as checkpoints name them: the core's own list, which knows sizes and no torch.
//
// Names are those of torch.<name> in 1.13 to 2.14; binding/ adds what a later release has besides. Which of
// them the running release has is known there alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zerocopy {

struct DType {
  std::string_view name;     // "float32": torch.float32
  std::string_view storage;  // "FloatStorage"; empty: written as UntypedStorage only
  std::uint8_t size;         // bytes an element
  std::uint8_t swap;         // bytes of the unit that byte order concerns (half of a complex)
  bool differentiable;       // may require grad
  bool quantized;
  std::string_view script = {};  // the class that TorchScript's pickler names where torch.save has none

  bool is_complex() const noexcept { return swap != size; }
};

// Adds an element type, unless there is one of that name. Before anything is read: not for several threads.
void add_dtype(const std::string& name, std::uint8_t size, bool is_complex, bool differentiable);

// Pointers into tables that only grow: compare by address.
const DType* dtype_by_name(std::string_view name);
const DType* dtype_by_storage(std::string_view storage_class);
const DType* dtype_by_script(std::string_view storage_class);

// UntypedStorage: bytes without a type, sizes count bytes.
const DType* untyped();

}  // namespace zerocopy
