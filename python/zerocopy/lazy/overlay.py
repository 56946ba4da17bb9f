"""``zerocopy.overlay``: several checkpoints as one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch

from zerocopy._typing import File
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import Layer, TensorsLayer
from zerocopy.lazy.opening import open


def overlay(*checkpoints: Checkpoint | Mapping[str, torch.Tensor] | File) -> Checkpoint:
    """Stack checkpoints as one: if several have a name, the last one's tensor counts.

    No tensor is read or copied. Shared tensors of one file stay shared, unless a later file has one of the
    names.

    Parameters
    ----------
    *checkpoints : Checkpoint, mapping of tensors, path, binary file object or buffer
        The base first. Files are opened as ``zerocopy.open`` does by default.

    Returns
    -------
    Checkpoint
        Names are in the order of their first appearance. Closing it closes the checkpoints that it opened itself. Once
        one of the others is closed, it is closed too.

    Raises
    ------
    TypeError
        Without arguments, or for a mapping of something else than tensors.
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``zerocopy.open``.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile() as base, tempfile.NamedTemporaryFile() as tuned:
    ...     torch.save({"body": torch.zeros(2), "head": torch.zeros(2)}, base.name)
    ...     torch.save({"head": torch.ones(2)}, tuned.name)
    ...     with zerocopy.overlay(base.name, tuned.name) as both:
    ...         {name: both.get_tensor(name) for name in both}
    {'body': tensor([0., 0.]), 'head': tensor([1., 1.])}
    """
    if not checkpoints:
        raise TypeError("expected at least one checkpoint")
    layers: list[Layer] = []
    opened: list[Layer] = []
    with ExitStack() as on_failure:
        for checkpoint in checkpoints:
            if isinstance(checkpoint, Checkpoint):
                layers += checkpoint.layers
            elif isinstance(checkpoint, Mapping):
                layers.append(TensorsLayer(checkpoint))
            else:
                own = on_failure.enter_context(open(checkpoint)).layers
                opened += own
                layers += own
        on_failure.pop_all()
    return Checkpoint(layers, opened)
