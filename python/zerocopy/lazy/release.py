"""``zerocopy.release``: gives memory of mapped files back to the system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy.lazy.prefetch import files_of, files_read_by, leaves_of, path_of


def release(path_or_obj: Any) -> int:
    """Free the memory of clean pages of mapped tensors. Values and addresses stay.

    The pages leave this process's memory and the page cache. The page cache counts as memory of a container, and as
    memory of a GPU that shares the machine's memory. A tensor that is used again is read from its file again. Pages
    that were written to are kept, also while other threads write.

    Parameters
    ----------
    path_or_obj : path, tensor, module, Checkpoint, or containers of these
        As for :func:`zerocopy.prefetch`. A path or a Checkpoint stands for all mappings of its files in this process.

    Returns
    -------
    int
        The bytes that left the memory of this process.

    Raises
    ------
    TypeError
        The argument is not one of these.
    OSError
        The path does not exist, or the kernel does not tell which pages are resident.

    Notes
    -----
    Pages stay in memory if another process maps them, if they are not on the disk yet, or if this process may not write
    to the file. Linux 5.4 and later.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1 << 20)}, file.name)
    >>> state = zerocopy.load(file.name)
    >>> state["weight"].sum()
    tensor(1048576.)
    >>> zerocopy.release(state) >= 0
    True
    >>> state["weight"].sum()
    tensor(1048576.)
    """
    if (path := path_of(path_or_obj)) is not None:
        return _core.release(_ranges_of(files_of(path)))
    leaves = list(leaves_of(path_or_obj, set()))
    storages = [_torch.untyped_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ranges = {(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()}
    opened = dict.fromkeys(leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))
    files = [file for each in opened for file in files_read_by(each)]
    return _core.release([*ranges, *_ranges_of(files)])


def _ranges_of(files: list[str]) -> list[tuple[int, int]]:
    """Return where files are mapped."""
    wanted = {os.fsencode(Path(file).resolve(strict=True)) for file in files}
    if not wanted:
        return []
    return [
        (mapping.begin, mapping.end - mapping.begin)
        for mapping in _core.file_mappings()
        if mapping.path in wanted
    ]
