#include "python/elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "memory/bytes.h"
#include "python/buffer.h"
#include "python/gil.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

struct ElementDifference {
  std::uint64_t unequal = 0;
  std::uint64_t first = 0;       // number of the first unequal element
  double largest = -1;           // of the distances that are finite; -1 if none is
  std::uint64_t not_finite = 0;  // elements whose distance is infinite or NaN
};

double number_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const double fraction = bits & 0x3ff;
  double size = 0;
  if (exponent == 0x1f) {
    size = fraction == 0 ? HUGE_VAL : std::nan("");
  } else {
    size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

struct Half {
  std::uint16_t bits;
  double number() const { return number_of_half(bits); }
};

struct BFloat16 {
  std::uint16_t bits;
  double number() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

template <typename Element>
double distance(Element a, Element b) {
  if constexpr (std::is_integral_v<Element>) {
    // The difference of 64-bit integers may need 65 bits, but its absolute value does not.
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<double>(a > b ? x - y : y - x);
  } else if constexpr (std::is_floating_point_v<Element>) {
    return std::fabs(static_cast<double>(a) - static_cast<double>(b));
  } else {
    return std::fabs(a.number() - b.number());
  }
}

template <typename Element>
ElementDifference compare(ByteSpan a, ByteSpan b) {
  ElementDifference found;
  for (std::size_t at = 0; at + sizeof(Element) <= a.size(); at += sizeof(Element)) {
    if (std::memcmp(a.data() + at, b.data() + at, sizeof(Element)) == 0) continue;
    Element x;
    Element y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    if (found.unequal++ == 0) found.first = at / sizeof(Element);
    const double gap = distance(x, y);
    if (!std::isfinite(gap)) {
      ++found.not_finite;
    } else if (gap > found.largest) {
      found.largest = gap;
    }
  }
  return found;
}

using Compare = ElementDifference (*)(ByteSpan, ByteSpan);

Compare comparison_of(std::string_view dtype) {
  if (dtype == "float32") return compare<float>;
  if (dtype == "bfloat16") return compare<BFloat16>;
  if (dtype == "float16") return compare<Half>;
  if (dtype == "float64") return compare<double>;
  if (dtype == "int64") return compare<std::int64_t>;
  if (dtype == "int32") return compare<std::int32_t>;
  if (dtype == "int16") return compare<std::int16_t>;
  if (dtype == "int8") return compare<std::int8_t>;
  if (dtype == "uint8" || dtype == "bool") return compare<std::uint8_t>;
  if (dtype == "uint16") return compare<std::uint16_t>;
  if (dtype == "uint32") return compare<std::uint32_t>;
  if (dtype == "uint64") return compare<std::uint64_t>;
  throw py::value_error("compare_elements does not know this dtype");
}

// Returns how many elements differ, the number of the first, the largest finite distance or None, and how
// many distances are not finite.
py::tuple compare_elements(const py::object& one, const py::object& other, std::string_view dtype) {
  const Region a = region_of_buffer(one.ptr(), Access::any);
  const Region b = region_of_buffer(other.ptr(), Access::any);
  if (a.bytes().size() != b.bytes().size()) throw py::value_error("expected two buffers of one size");
  const Compare comparison = comparison_of(dtype);
  ElementDifference found;
  {
    const GilReleased released;
    found = comparison(a.bytes(), b.bytes());
  }
  return py::make_tuple(found.unequal, found.first,
                        found.largest < 0 ? py::object(py::none()) : py::float_(found.largest),
                        found.not_finite);
}

}  // namespace

void register_elements(py::module_& module) {
  module.def("compare_elements", &compare_elements, py::arg("a"), py::arg("b"), py::arg("dtype"));
}

}  // namespace zerocopy
