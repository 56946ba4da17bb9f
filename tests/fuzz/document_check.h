// Invariants of every Document.
#pragma once

#include "pickle/document.h"

namespace zerocopy::fuzz {

// Walks the whole graph and aborts when a tensor leaves its storage, a view its root, or a node
// or global is one that the document does not know.
void check_document(const Document& document);

}  // namespace zerocopy::fuzz
