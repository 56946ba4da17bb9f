// A file's name: in Python a str whose surrogates stand for bytes that are not UTF-8, as os.fsdecode makes
// it.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace zerocopy {

struct FileName {
  std::string bytes;
};

}  // namespace zerocopy

template <>
struct pybind11::detail::type_caster<zerocopy::FileName> {
  PYBIND11_TYPE_CASTER(zerocopy::FileName, const_name("str"));

  bool load(handle text, bool /*convert*/) {
    if (PyUnicode_Check(text.ptr()) == 0) return false;
    const auto encoded = reinterpret_steal<pybind11::bytes>(PyUnicode_EncodeFSDefault(text.ptr()));
    if (!encoded) {
      PyErr_Clear();
      return false;
    }
    value.bytes = std::string(encoded);
    return true;
  }

  static handle cast(const zerocopy::FileName& name, return_value_policy /*policy*/, handle /*parent*/) {
    return PyUnicode_DecodeFSDefaultAndSize(name.bytes.data(), static_cast<Py_ssize_t>(name.bytes.size()));
  }
};
