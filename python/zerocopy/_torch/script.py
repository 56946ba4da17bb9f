"""TorchScript's private names: the part of :mod:`zerocopy._torch` that loads programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

from zerocopy._torch.private_names import private

#: The release's own, whoever replaces it later.
jit_load = torch.jit.load
#: The module in which pickle finds the functions of ``torch.jit``.
serialization = sys.modules.get("torch.jit._serialization", torch.jit)


def script_device(map_location: Any) -> torch.device | None:
    """Return the device that torch.jit.load takes `map_location` for. Raises what it raises."""
    validate = private("torch.jit._serialization.validate_map_location")
    device: torch.device | None = validate(map_location)
    return device


def import_script(
    package: BinaryIO, storages: Mapping[str, torch.Tensor], device: torch.device | None, number: str
) -> Any:
    """Return the TorchScript module of that number in a package, over the storages of these tensors."""
    table = private("torch._C.DeserializationStorageContext")()
    for key, tensor in storages.items():
        table.add_storage(key, tensor)
    reader = private("torch._C.PyTorchFileReader")(package)
    try:
        import_module = private("torch._C._import_ir_module_from_package")
        module = import_module(private("torch._C.CompilationUnit")(), reader, table, device, number)
    except UnicodeDecodeError as error:
        # torch's message quotes source that is not UTF-8. The decoding error would hide it.
        raise RuntimeError(error.object.decode(errors="replace")) from None
    return private("torch.jit._recursive.wrap_cpp_module")(module)
