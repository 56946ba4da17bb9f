"""Plans the content of a ``.safetensors`` file, or lists what the format cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from zerocopy.converting import charges
from zerocopy.converting.inputs import FORMAT, Sources
from zerocopy.converting.left_out import listed
from zerocopy.converting.safetensors_writer import Described, described, is_text, why_not_a_name
from zerocopy.converting.ties import overlapping, tied_names
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.lazy import name_hints
from zerocopy.lazy.conversion import cast_dtype


class Plan(NamedTuple):
    """The content to write.

    Attributes
    ----------
    tensors : list of Described
        Each once, in the order of the sources.
    metadata : dict of str to str
        Of the sources, without ties.
    ties : dict of str to str
        Names that are left out, and the name that is kept of each tensor.
    left_out : list of str
        Names of values that are neither tensors nor strings, and of strings that readers would take for ties: the
        name of a tensor under a key that is not the name of one.
    """

    tensors: list[Described]
    metadata: dict[str, str]
    ties: dict[str, str]
    left_out: list[str]

    def metadata_of(self, names: set[str]) -> dict[str, str]:
        """Return the metadata of a file that has these tensors, as ``safetensors.torch.save_model`` records ties."""
        ties = {dropped: kept for dropped, kept in self.ties.items() if kept in names}
        # Readers take an entry for a tie if its key is not a stored tensor. Only the shard with that tensor gets it.
        metadata = {
            key: value
            for key, value in self.metadata.items()
            if value not in names or key in names or key in FORMAT
        }
        return dict(sorted((ties | metadata).items()))


def planned(sources: Sources, dtype: torch.dtype | None, kept: Sequence[str] | None) -> Plan:
    """Return what is to be written. Raises ``UnsupportedError`` that lists the tensors that cannot be.

    Of tied names those in `kept` are written; without any the first; None writes all, and tensors that overlap.
    """
    sources.require_tensors()
    charges.require_few_copied(sources)
    said = sources.others | sources.metadata
    metadata = {
        name: value
        for name, value in said.items()
        if isinstance(value, str) and is_text(name) and is_text(value)
        # Readers would take the name of a tensor for a tie, unless the key is the name of a stored tensor.
        if value not in sources.tensors or name in sources.tensors or name in FORMAT
    }
    # A name that is left out becomes a key of the metadata, and there is one value for each key.
    if unknown := [name for name in kept or () if name not in sources.tensors]:
        raise name_hints.no_such_name(sources.name, unknown[0], sources.tensors)
    ties = (
        {}
        if kept is None
        else tied_names(sources, dict.fromkeys([*kept, *sorted(metadata.keys() | FORMAT.keys())]))
    )
    names = [name for name in sources.tensors if name not in ties]
    overlaps = set() if kept is None else set(overlapping(sources, names))
    tensors, refused = [], []
    for name in names:
        tensor = sources.tensors[name]
        info, is_dense = tensor.info(), tensor.entry().is_dense
        why = "overlapping" if name in overlaps else "" if is_dense else _why_not(tensor.read())
        wanted = cast_dtype(info.dtype, dtype)
        why = why or why_not_a_name(name)
        entry = None if why else described(name, wanted, info.shape)
        if entry is None:
            refused.append(f"{shown(name)} ({why or str(wanted).removeprefix('torch.')})")
        else:
            tensors.append(entry)
    refused += [f"{shown(name)} (a tied name that is not Unicode text)" for name in ties if not is_text(name)]
    if refused:
        raise UnsupportedError(
            f"{sources.name}: .safetensors cannot hold {len(refused)} of its tensors: {listed(refused)}"
        )
    return Plan(tensors, metadata, ties, [name for name in said if name not in metadata])


def _why_not(tensor: torch.Tensor) -> str:
    """Return why a tensor that is not over one storage is none that the format can hold, or an empty string."""
    if tensor.is_quantized:
        return "quantized"
    if getattr(tensor, "is_nested", False):
        return "nested"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.device.type == "meta":
        return "without data"
    return "" if type(tensor) in (torch.Tensor, torch.nn.Parameter) else f"a {type(tensor).__name__}"
