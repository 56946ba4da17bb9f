// Transfer options for Python callers: signal handlers run during the transfer, and their
// exceptions stop it.
#pragma once

#include <pybind11/pybind11.h>

#include "io/transfer.h"
#include "python/gil.h"

namespace zerocopy {

inline TransferOptions transfer_options(unsigned threads) {
  return {.threads = threads, .on_progress = [](std::uint64_t) {
            const GilTaken gil;
            if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
          }};
}

}  // namespace zerocopy
