// The safetensors container: its header, fully checked.
//
//   uint64 n, little-endian │ n bytes of JSON │ the tensors' bytes, without a gap
//
//   {"__metadata__": {"format": "pt"},
//    "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
//
// https://github.com/huggingface/safetensors#format. The checks are those of the reference reader.
// They also refuse headers that parsers read differently: duplicate names, unknown fields, and
// headers that do not begin with "{".
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "io/source.h"
#include "memory/arena.h"

namespace zerocopy {

// One tensor. Strings and shapes live as long as the header; most names are views of its text.
struct SafetensorsEntry {
  std::string_view name;
  std::string_view dtype;  // as the format spells it: "F32"
  std::span<const std::int64_t> shape;
  Extent extent;  // in the file
};

class SafetensorsHeader {
 public:
  // Checks the first bytes: the header's length and its first character.
  static bool recognises(const Source& source);

  // Throws FormatError, or UnsupportedError for an unknown field of an entry.
  explicit SafetensorsHeader(const Source& source);

  const Region& text() const noexcept { return text_; }

  // In the order of their bytes in the file.
  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }

  using Pair = std::pair<std::string_view, std::string_view>;
  const std::vector<Pair>& metadata() const noexcept { return metadata_; }

 private:
  class Parser;

  Region text_;
  Arena arena_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<Pair> metadata_;
};

}  // namespace zerocopy
