// The structures of DLPack, by which torch takes over foreign memory: a stable C interface.
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace zerocopy::dlpack {

inline constexpr const char* kCapsule = "dltensor";
inline constexpr std::int32_t kCpu = 1;

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

inline constexpr DataType kByte{1, 8, 1};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

}  // namespace zerocopy::dlpack
