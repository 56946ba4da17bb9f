"""TorchScript's private names: the part of :mod:`zerocopy._torch` that loads programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

#: The release's own, whoever replaces it later.
jit_load = torch.jit.load
#: The module in which pickle finds the functions of ``torch.jit``.
serialization = torch.jit._serialization


def script_device(map_location: Any) -> torch.device | None:
    """Return the device that torch.jit.load takes `map_location` for. Raises what it raises."""
    device: torch.device | None = torch.jit._serialization.validate_map_location(map_location)
    return device


def import_script(
    package: BinaryIO, storages: Mapping[str, torch.Tensor], device: torch.device | None, number: str
) -> Any:
    """Return the TorchScript module of that number in a package, over the storages of these tensors."""
    table = torch._C.DeserializationStorageContext()
    for key, tensor in storages.items():
        table.add_storage(key, tensor)
    reader = torch._C.PyTorchFileReader(package)
    try:
        module = torch._C._import_ir_module_from_package(
            torch._C.CompilationUnit(), reader, table, device, number
        )
    except UnicodeDecodeError as error:
        # torch's message quotes source that is not UTF-8. The decoding error would hide it.
        raise RuntimeError(error.object.decode(errors="replace")) from None
    return torch.jit._recursive.wrap_cpp_module(module)
