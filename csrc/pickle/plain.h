// Native calls that make plain values: containers, torch.Size, torch.device, bytes, complex.
#pragma once

#include "pickle/arguments.h"

namespace zerocopy {

Value make_ordered_dict(Document& document, const Arguments& arguments);
Value make_counter(Document& document, const Arguments& arguments);
Value make_set(Document& document, const Arguments& arguments);
Value make_size(Document& document, const Arguments& arguments);
Value make_device(Document& document, const Arguments& arguments);
Value make_complex(Document& document, const Arguments& arguments);
Value make_empty_bytes(Document& document, const Arguments& arguments);
Value encode_text(Document& document, const Arguments& arguments);
Value make_byte_array(Document& document, const Arguments& arguments);

}  // namespace zerocopy
