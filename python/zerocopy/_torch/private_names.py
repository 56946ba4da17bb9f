"""The private names of torch that zerocopy uses, and the only way to get one.

A release may lose any of them. A feature that needs a lost name raises ``UnsupportedError`` with the name. Other
features go on.
``tests/project/test_private_names.py`` looks each up in the running release, and hides each in turn.
"""

from __future__ import annotations

import pkgutil
from typing import Any

import torch

from zerocopy.errors import UnsupportedError

#: From paths to the feature that needs the name.
NEEDED = {
    "torch._C.CompilationUnit": "TorchScript",
    "torch._C.DeserializationStorageContext": "TorchScript",
    "torch._C.DisableTorchFunction": "tensors of subclasses, and lazy tensors",
    "torch._C.DispatchKey": "lazy tensors",
    "torch._C.PyTorchFileReader": "TorchScript",
    "torch._C._DisableTorchDispatch": "tensors of subclasses and of fake tensors",
    "torch._C._InferenceMode": "loads within torch.inference_mode",
    "torch._C._import_ir_module_from_package": "TorchScript",
    "torch._C._set_conj": "conjugated tensors without a compiled bridge",
    "torch._C._set_neg": "negated tensors without a compiled bridge",
    "torch._neg_view": "negated tensors",
    "torch._utils._rebuild_qtensor": "quantized tensors",
    "torch._utils._rebuild_wrapper_subclass": "wrapper subclasses",
    "torch._utils._validate_loaded_sparse_tensors": "sparse tensors",
    "torch._weights_only_unpickler._get_allowed_globals": "globals that zerocopy does not build itself",
    "torch.UntypedStorage._cdata": "tied tensors of trusted files",
    "torch.UntypedStorage._expired": "storages of weak references without a compiled bridge",
    "torch.UntypedStorage._free_weak_ref": "storages of weak references without a compiled bridge",
    "torch.UntypedStorage._new_with_weak_ptr": "storages of weak references without a compiled bridge",
    "torch.UntypedStorage._weak_ref": "storages of weak references without a compiled bridge",
    "torch.Tensor._coalesced_": "coalesced sparse tensors",
    "torch.Tensor._indices": "coalesced sparse tensors",
    "torch.Tensor._make_subclass": "tensor subclasses",
    "torch.Tensor._make_wrapper_subclass": "lazy tensors without a compiled bridge, and wrapper subclasses",
    "torch.Tensor._values": "coalesced sparse tensors",
    "torch.jit._recursive.wrap_cpp_module": "TorchScript",
    "torch.jit._serialization.validate_map_location": "map_location of TorchScript",
    "torch.nn.Module._register_load_state_dict_pre_hook": "load_model and assign",
    "torch.overrides._pop_mode_temporarily": "loads within modes of __torch_function__",
    "torch.serialization._get_restore_location": "map_location",
    "torch.serialization._package_registry": "map_location and registered packages",
    "torch.storage._dtype_to_storage_type_map": "files for older releases, and legacy files",
}  # fmt: skip

#: Names that some releases lack. From paths to what zerocopy does without the name.
OPTIONAL = {
    "torch._C._SetExcludeDispatchKeyGuard": "1.13: torch applies the bits of lazy tensors itself",
    "torch._C._aoti.AOTIModelPackageLoader": "packages of AOTInductor need PyTorch 2.9 or later",
    "torch._C._pickle_load_obj": "objects of custom classes in programs are not loaded",
    "torch._export.serde.schema.ExportedProgram": "programs of torch.export need PyTorch 2.9 or later",
    "torch._export.serde.serialize.ExportedProgramDeserializer": "programs of torch.export need PyTorch 2.9 or later",
    "torch._export.serde.serialize.serialize": "programs of torch.export need PyTorch 2.9 or later",
    "torch._export.serde.serialize._bytes_to_dataclass": "programs of torch.export need PyTorch 2.9 or later",
    "torch.export.pt2_archive._package.AOTICompiledModel": "packages of AOTInductor need PyTorch 2.9 or later",
    "torch.export.pt2_archive.constants.WEIGHTS_CONFIG_FILENAME_FORMAT": "programs of torch.export need 2.9 or later",
    "torch._C._functorch": "1.13: there are no transforms of torch.func",
    "torch._C._get_mkldnn_enabled": "oneDNN counts as used",
    "torch._C._len_torch_dispatch_stack": "dispatch modes stay active",
    "torch._C._log_api_usage_once": "torch's usage log is not told",
    "torch._utils._element_size": "2.1 and later: dtype.itemsize",
    "torch._utils._get_sparse_tensors_to_validate": "before 2.15: the name below",
    "torch._utils._rebuild_device_tensor_from_numpy": "1.13: a file that names it is refused",
    "torch._utils._rebuild_nested_tensor": "1.13: a file that names it is refused",
    "torch._utils._sparse_tensors_to_validate": "2.15 and later: the name above",
    "torch.nested._internal.nested_tensor.NestedTensor": "before 2.1: there are no jagged tensors",
    "torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX": "modules have no extra state",
    "torch.overrides._get_current_function_mode_stack": "modes of __torch_function__ stay active",
    "torch.serialization._cpu_deserialize": "storages are restored by torch's registry, one by one",
    "torch.serialization._default_to_weights_only": "before 2.6: torch.load trusts files",
    "torch.serialization._serialization_tls": "before 2.6: torch has no skip_data",
}  # fmt: skip


# A dict, since torch.compile warns of functions that functools caches.
_found: dict[str, tuple[Any, str]] = {}


def _owner_and_name(path: str) -> tuple[Any, str]:
    if path in _found:
        return _found[path]
    if path not in NEEDED and path not in OPTIONAL:
        raise KeyError(path)
    owner, _, name = path.rpartition(".")
    try:
        _found[path] = pkgutil.resolve_name(owner), name
    except (ImportError, AttributeError):
        _found[path] = None, name
    return _found[path]


def private_or_none(path: str) -> Any:
    """Return the object that a private name of torch stands for now; None if the running release lacks it."""
    owner, name = _owner_and_name(path)
    return getattr(owner, name, None)


def private(path: str) -> Any:
    """Return the object that a private name of torch stands for.

    Raises
    ------
    UnsupportedError
        The running release lacks it. The message has the name.
    """
    found = private_or_none(path)
    if found is None:
        what = f"zerocopy needs it for {NEEDED[path]}" if path in NEEDED else OPTIONAL[path]
        raise UnsupportedError(f"PyTorch {torch.__version__} has no {path}: {what}")
    return found
