// A bridge to any release of torch: by DLPack and the functions of zerocopy/_torch/portable.py, without
// torch's headers. A tensor costs some microseconds more than by a compiled bridge.
#pragma once

#include "bridge/table.h"

namespace zerocopy {

const ZerocopyBridge* portable_bridge(const ZerocopyBridgeHost* host) noexcept;

}  // namespace zerocopy
