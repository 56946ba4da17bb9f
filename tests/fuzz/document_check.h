// Invariants of every Document.
#pragma once

#include "pickle/document.h"

namespace zerocopy::fuzz {

// Walks the whole graph. Aborts if a tensor exceeds its storage, a view exceeds its root, or the
// document does not list a node or global.
void check_document(const Document& document);

}  // namespace zerocopy::fuzz
