"""torch's private names for programs: what torch.export and AOTInductor write and run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zerocopy._torch.private_names import private
from zerocopy.errors import UnsupportedError


def require_export() -> None:
    """Import what programs of torch.export take. Raises ``UnsupportedError`` for a release that has other archives."""
    _import("torch.export.pt2_archive._package", "torch._export.serde.serialize")
    private("torch.export.pt2_archive.constants.WEIGHTS_CONFIG_FILENAME_FORMAT")


def has_archives() -> bool:
    """Return whether this release writes archives of torch.export that zerocopy reads."""
    try:
        require_export()
    except UnsupportedError:
        return False
    return True


def exported_program(
    graph: bytes,
    state_dict: Mapping[str, torch.Tensor],
    constants: Mapping[str, Any],
    inputs: Any,
    opset_version: dict[str, int] | None,
) -> Any:
    """Return the program of a graph, over these tensors. `inputs` are the sample inputs, or their bytes."""
    schema = private("torch._export.serde.schema.ExportedProgram")
    described = private("torch._export.serde.serialize._bytes_to_dataclass")(schema, graph)
    deserializer = private("torch._export.serde.serialize.ExportedProgramDeserializer")
    return deserializer(opset_version).deserialize(described, state_dict, constants, inputs)


def is_exported(obj: Any) -> bool:
    """Return whether an object is a program of torch.export."""
    module = sys.modules.get("torch.export.exported_program")
    return module is not None and isinstance(obj, module.ExportedProgram)


def parts_of(program: Any) -> tuple[Any, ...]:
    """Return the arguments with which :func:`exported_program` makes a program again."""
    require_export()
    serialize = private("torch._export.serde.serialize.serialize")
    graph = serialize(program, serialize_state_dict=False, serialize_constants=False).exported_program
    return graph, dict(program.state_dict), dict(program.constants), program.example_inputs or (), None


def script_object(content: bytes) -> Any:
    """Return the object of a custom class of C++. torch trusts the bytes."""
    return private("torch._C._pickle_load_obj")(content)


def compiled_program(path: str | Path, model: str) -> Any:
    """Return a compiled program, of a package or the folder that it was unpacked to."""
    _import("torch.export.pt2_archive._package")
    loader = private("torch._C._aoti.AOTIModelPackageLoader")(str(path), model, False, 1, -1)
    return private("torch.export.pt2_archive._package.AOTICompiledModel")(loader)


def _import(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            return  # the private name in it is missing too, and says what it is for
