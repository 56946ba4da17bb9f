// Turns the core's exceptions into Python's. No other file does.
#pragma once

namespace zerocopy {

void register_exceptions();

}  // namespace zerocopy
