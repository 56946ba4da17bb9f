// Names in a pickle: the ones the machine knows by itself, and a list of all that a pickle holds.
//
// A GLOBAL is a pair (module, name) looked up in a table, compared byte for byte. Nothing is
// imported, no dotted name is followed, and a pair that is not in the table is only a name.
#pragma once

#include <compare>
#include <string_view>
#include <vector>

#include "memory/bytes.h"
#include "pickle/dtype.h"

namespace zerocopy {

// What the machine does with a global.
enum class Action : std::uint8_t {
  external,  // not ours: allowed or refused by the release's and the user's lists
  dtype,
  storage_class,
  size,
  device,
  ordered_dict,
  counter,
  set,
  bytes,
  byte_array,
  complex,
  encode,
  parameter_class,
  rebuild_tensor,
  rebuild_tensor_v2,
  rebuild_tensor_v3,
  rebuild_parameter,
  rebuild_parameter_with_state,
};

struct Known {
  Action action = Action::external;
  const DType* dtype = nullptr;  // of a dtype or a storage class
};

Known known_global(std::string_view module, std::string_view name);

// Of a module or of a name in it. None that people write is longer, and each use costs its length.
constexpr std::size_t kMaxGlobalName = 255;

struct GlobalName {
  std::string_view module;
  std::string_view name;

  friend auto operator<=>(const GlobalName&, const GlobalName&) = default;
};

// Every global that the pickle names, sorted, each once, by whichever opcode names it: views of the pickle,
// in which one long name may be paired with many. Executes nothing; reads up to STOP or to the first byte
// that cannot be decoded. Longer names are cut.
std::vector<GlobalName> list_globals(ByteSpan pickle);

}  // namespace zerocopy
