// The globals that the machine knows natively, and a list of all globals in a pickle.
//
// A GLOBAL is a pair (module, name), looked up in a table and compared byte for byte. Nothing is
// imported, and dotted names are not followed. A pair outside of the table remains a name.
#pragma once

#include <compare>
#include <string_view>
#include <vector>

#include "memory/bytes.h"
#include "pickle/dtype.h"

namespace zerocopy {

// The machine's handling of a global.
enum class Action : std::uint8_t {
  external,  // not native: the release's and the user's allow-lists decide
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

struct KnownGlobal {
  Action action = Action::external;
  const DType* dtype = nullptr;  // of a dtype or a storage class
};

KnownGlobal known_global(std::string_view module, std::string_view name);

// The maximum length of a module or name. Real names are shorter, and each use costs its length.
constexpr std::size_t kMaxGlobalName = 255;

struct GlobalName {
  std::string_view module;
  std::string_view name;

  friend auto operator<=>(const GlobalName&, const GlobalName&) = default;
};

// Returns the globals that any opcode of the pickle names, sorted and without duplicates, as views
// of the pickle. Executes nothing. Stops at STOP or at the first byte that cannot be decoded. Cuts
// overlong names.
std::vector<GlobalName> list_globals(ByteSpan pickle);

}  // namespace zerocopy
