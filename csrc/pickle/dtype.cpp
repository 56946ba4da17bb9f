#include "pickle/dtype.h"

#include <algorithm>
#include <array>
#include <deque>

namespace zerocopy {
namespace {

constexpr std::array kDTypes{
    DType{"float64", "DoubleStorage", 8, 8, true, false},
    DType{"float32", "FloatStorage", 4, 4, true, false},
    DType{"float16", "HalfStorage", 2, 2, true, false},
    DType{"bfloat16", "BFloat16Storage", 2, 2, true, false},
    DType{"int64", "LongStorage", 8, 8, false, false},
    DType{"int32", "IntStorage", 4, 4, false, false},
    DType{"int16", "ShortStorage", 2, 2, false, false},
    DType{"int8", "CharStorage", 1, 1, false, false},
    DType{"uint8", "ByteStorage", 1, 1, false, false},
    DType{"bool", "BoolStorage", 1, 1, false, false},
    DType{"complex128", "ComplexDoubleStorage", 16, 8, true, false},
    DType{"complex64", "ComplexFloatStorage", 8, 4, true, false},
    DType{"qint8", "QInt8Storage", 1, 1, false, true},
    DType{"qint32", "QInt32Storage", 4, 4, false, true},
    DType{"quint8", "QUInt8Storage", 1, 1, false, true},
    DType{"quint4x2", "QUInt4x2Storage", 1, 1, false, true},
    DType{"quint2x4", "QUInt2x4Storage", 1, 1, false, true},
    DType{"complex32", "", 4, 2, true, false, "ComplexHalfStorage"},
    DType{"bcomplex32", "", 4, 2, true, false, "BComplex32Storage"},
    DType{"float8_e5m2", "", 1, 1, true, false, "Float8_e5m2Storage"},
    DType{"float8_e4m3fn", "", 1, 1, true, false, "Float8_e4m3fnStorage"},
    DType{"float8_e5m2fnuz", "", 1, 1, true, false, "Float8_e5m2fnuzStorage"},
    DType{"float8_e4m3fnuz", "", 1, 1, true, false, "Float8_e4m3fnuzStorage"},
    DType{"float8_e8m0fnu", "", 1, 1, true, false, "Float8_e8m0fnuStorage"},
    DType{"float4_e2m1fn_x2", "", 1, 1, true, false, "Float4_e2m1fn_x2Storage"},
    DType{"uint16", "", 2, 2, false, false, "UInt16Storage"},
    DType{"uint32", "", 4, 4, false, false, "UInt32Storage"},
    DType{"uint64", "", 8, 8, false, false, "UInt64Storage"},
    DType{"bits8", "", 1, 1, false, false, "Bits8Storage"},
    DType{"bits16", "", 2, 2, false, false, "Bits16Storage"},
    DType{"bits1x8", "", 1, 1, false, false, "Bits1x8Storage"},
    DType{"bits2x4", "", 1, 1, false, false, "Bits2x4Storage"},
    DType{"bits4x2", "", 1, 1, false, false, "Bits4x2Storage"},
};

constexpr DType kUntyped{"uint8", "UntypedStorage", 1, 1, false, false};

struct AddedDType {
  std::string name;
  DType dtype;
};

// A deque, since its elements never move.
std::deque<AddedDType>& added() {
  static std::deque<AddedDType> list;
  return list;
}

const DType* find(std::string_view DType::*field, std::string_view wanted) {
  const auto* found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DType& d) { return d.*field == wanted; });
  return found == kDTypes.end() || wanted.empty() ? nullptr : found;
}

}  // namespace

void add_dtype(const std::string& name, std::uint8_t size, bool is_complex, bool differentiable) {
  if (dtype_by_name(name) != nullptr) return;
  const auto unit = static_cast<std::uint8_t>(is_complex ? size / 2 : size);
  AddedDType& made = added().emplace_back(AddedDType{name, DType{"", "", size, unit, differentiable, false}});
  made.dtype.name = made.name;
}

const DType* dtype_by_name(std::string_view name) {
  if (const DType* known = find(&DType::name, name)) return known;
  for (const AddedDType& later : added()) {
    if (later.name == name) return &later.dtype;
  }
  return nullptr;
}

const DType* dtype_by_storage(std::string_view storage_class) {
  return storage_class == kUntyped.storage ? &kUntyped : find(&DType::storage, storage_class);
}

const DType* dtype_by_script(std::string_view storage_class) { return find(&DType::script, storage_class); }

const DType* untyped() { return &kUntyped; }

}  // namespace zerocopy
