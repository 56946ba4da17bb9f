"""Weights for a program that come from elsewhere, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from zerocopy.display import listed
from zerocopy.loading import inputs, loader
from zerocopy.loading.options import LoadOptions


def with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor whose elements lie as a program was traced with: itself, or a copy."""
    if tensor.stride() == stride or tensor.numel() == 0:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class Weights:
    """Tensors by name.

    Parameters
    ----------
    tensors : mapping
        By the names that a program has for them.
    source : str
        What messages call it.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        self.tensors, self._source = tensors, source

    @classmethod
    def of(cls, given: Any) -> Weights:
        """Return the weights of a mapping, or of a checkpoint, which is mapped."""
        if isinstance(given, Mapping):
            found, source = given, "weights"
        else:
            found, source = loader.load_weights(given, LoadOptions()), inputs.name_of(given)
        if isinstance(found, Mapping) and all(isinstance(value, torch.Tensor) for value in found.values()):
            return cls(found, source)
        raise TypeError(
            f"{source}: expected tensors by name, found {type(found).__name__}"
            + " with other values" * isinstance(found, Mapping)
        )

    def taken(
        self,
        names: Mapping[str, Any],
        why_not: Callable[[str, torch.Tensor], str],
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of these names; one of equal values in `names` stands for all, as for tied tensors.

        `why_not` says why a tensor cannot be taken. Raises ``RuntimeError`` for all such and missing ones together.
        """
        homes: dict[Any, str] = {}
        for name, value in names.items():
            if name in self.tensors:
                homes.setdefault(value, name)
        taken, faults = {}, []
        for name, value in names.items():
            found = self.tensors.get(name if name in self.tensors else homes.get(value, name))
            if why := "is missing" if found is None else why_not(name, found):
                faults.append(f"{name} {why}")
            elif found is not None:
                taken[name] = found
        if faults:
            raise RuntimeError(f"{self._source}: {listed(faults)}")
        return taken

    def in_place_of(
        self, own: Mapping[str, torch.Tensor], paths: Mapping[str, str]
    ) -> dict[str, torch.Tensor]:
        """Return a state dict with these weights. `own` is the program's, `paths` are the records of its weights."""

        def why_not(name: str, found: torch.Tensor) -> str:
            is_, needs = (f"{each.dtype} {tuple(each.shape)} on {each.device}" for each in (found, own[name]))
            return "" if is_ == needs else f"is {is_}, and the program needs {needs}"

        views = {name: (paths[name], own[name].storage_offset(), own[name].stride()) for name in own}
        taken = self.taken(views, why_not)
        return {name: _like(own[name], tensor) for name, tensor in taken.items()}


def _like(own: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    tensor = with_strides(tensor.detach(), own.stride())
    if isinstance(own, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, own.requires_grad)
    return tensor.requires_grad_(own.requires_grad)
