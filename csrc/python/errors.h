// Turns the core's exceptions into Python's. The only translator.
#pragma once

namespace zerocopy {

void register_exceptions();

}  // namespace zerocopy
