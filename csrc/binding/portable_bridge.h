// A bridge to any release of torch, by DLPack and the functions of zerocopy/_torch/portable.py,
// without torch's headers. Each tensor takes a few microseconds more than with a compiled bridge.
#pragma once

#include "bridge/table.h"

namespace zerocopy {

const ZerocopyBridge* portable_bridge(const ZerocopyBridgeHost* host) noexcept;

}  // namespace zerocopy
