// Registers the pause of Python's garbage collector.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// Adds CollectorPause. Between two instructions of Python a signal handler may raise, and the collector
// would stay off. So entering the pause is one instruction, and leaving it too.
void register_collector_pause(pybind11::module_& module);

}  // namespace zerocopy
