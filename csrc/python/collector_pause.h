// Registers the pause of Python's garbage collector.
#pragma once

#include <pybind11/pybind11.h>

namespace zerocopy {

// CollectorPause. Entering and leaving it is one instruction of Python each: between two of them, a
// signal handler may raise, and the collector would stay off.
void register_collector_pause(pybind11::module_& module);

}  // namespace zerocopy
