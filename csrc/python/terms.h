// On what terms Python has bytes read: by so many threads, and stopped by what a signal's handler raises.
#pragma once

#include <pybind11/pybind11.h>

#include "io/transfer.h"
#include "python/gil.h"

namespace zerocopy {

inline Terms terms_of(unsigned threads) {
  return {.threads = threads, .meanwhile = [](std::uint64_t) {
            const GilTaken gil;
            if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
          }};
}

}  // namespace zerocopy
