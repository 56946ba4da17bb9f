"""Checked versions of torch's rebuild functions, for what the native builder does not make itself.

The common cases (dense tensors, parameters) are native; see csrc/pickle/rebuild.cpp. Here are the rest of
``torch/_utils.py``: sparse, quantized, nested, meta and subclassed tensors. How far torch checks these
arguments depends on the release, so all are checked here.
"""

from zerocopy.loading.objects.rebuild.layouts import rebuild_sparse_tensor
from zerocopy.loading.objects.rebuild.registry import (
    MAX_DIMENSIONS,
    QUANTIZED,
    SAFE,
    callee,
    checked_version,
    may_be_called,
    set_attributes,
)
from zerocopy.loading.objects.rebuild.tensors import rebuild_from_type_v2, rebuild_parameter, tensor_over

__all__ = [
    "MAX_DIMENSIONS",
    "QUANTIZED",
    "SAFE",
    "callee",
    "checked_version",
    "may_be_called",
    "rebuild_from_type_v2",
    "rebuild_parameter",
    "rebuild_sparse_tensor",
    "set_attributes",
    "tensor_over",
]
