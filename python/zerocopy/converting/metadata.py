"""Collects metadata of files, and the ties in it. Other formats keep ``.safetensors`` metadata in an attribute."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from zerocopy import _core
from zerocopy.converting.plain import PlainLayer
from zerocopy.display import shown
from zerocopy.loading.formats.safetensors import METADATA

if TYPE_CHECKING:
    from zerocopy.lazy.layer import FileLayer

# accelerate, and transformers before version 5, refuse files that have metadata without this entry.
#: The metadata entry by which a ``.safetensors`` file says that its tensors are torch's.
FORMAT = {"format": "pt"}
#: Formats of files with a pickled object.
OF_TORCH = ("zip", "legacy", "hdf5")

_TIE = 512  # bytes of memory for each further name of a tensor
_AROUND_TIE = 6  # quotes, colon and comma in a header


def others_and_metadata(
    layers: Iterable[FileLayer | PlainLayer],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the leaves that are not tensors, and the metadata of the files."""
    others: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for layer in layers:
        others |= layer.others()
        metadata |= layer.attached() | _attached_to_root(layer)
    return others, {name: value for name, value in metadata.items() if name not in others}


def _attached_to_root(layer: FileLayer | PlainLayer) -> dict[str, Any]:
    """Return the metadata that a pickled object has from a ``.safetensors`` file."""
    if isinstance(layer, PlainLayer) or layer.container not in OF_TORCH:
        return {}
    first = [*layer.names()[:1], *layer.other_names()][:1]  # enough to have the attributes of the root
    attached = getattr(layer.build(first or None), METADATA, None)
    return attached if isinstance(attached, dict) else {}


def recorded_ties(path: str, tensors: Collection[str], metadata: dict[str, Any]) -> dict[str, str]:
    """Return the names that ``safetensors.torch.save_model`` left out, each with the name that it kept instead."""
    ties = {
        name: kept
        for name, kept in metadata.items()
        if isinstance(kept, str) and kept in tensors and name not in tensors and name not in FORMAT
    }
    spelled = sum(len(name) + len(kept) + _AROUND_TIE for name, kept in ties.items())
    complaint = (
        f"{shown(path, None)}: expected fewer tied names for the size of its metadata, found {len(ties)}"
    )
    _core.Budget(spelled, complaint).charge(_TIE * len(ties))
    return ties
