"""``zerocopy.gds.save``: room for every storage first, then their bytes, from wherever they are."""

from __future__ import annotations

import os
from typing import Any

from zerocopy import _torch
from zerocopy._typing import GdsMode
from zerocopy.errors import UnsupportedError
from zerocopy.gds import channel, cufile
from zerocopy.gds.available import required
from zerocopy.saving import saver
from zerocopy.saving.archive import CheckpointPlan
from zerocopy.saving.atomic_file import NewFile, is_special, path_of_file, replacing
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.pickled_object import PickledObject

_ALIGNMENT = 4096


def save(state_dict: Any, path: str | os.PathLike[str], *, require: GdsMode | None = None) -> None:
    """Save as ``torch.save`` does, with GPUDirect Storage for GPU storages if possible.

    Every ``torch.load`` since PyTorch 1.6 reads the file, and its storages begin at multiples of 4096 bytes. Storages
    on the CPU, and those of less than a megabyte, are written plainly; one that several tensors share is written once.
    As with ``zerocopy.save`` a file of that name stays as it is until the new one is whole and on the disk.

    Parameters
    ----------
    state_dict : object
        Anything that ``torch.save`` takes, on the CPU, on GPUs or on both.
    path : str or PathLike
        The file.
    require : {None, "direct", "compat"}
        The mode that :func:`available` must report for the file's folder. None accepts any mode.

    Raises
    ------
    zerocopy.UnsupportedError
        Less than what is required is there, and why. Nothing has been written.
    OSError
        The operating system or cuFile refused.
    Exception
        As ``zerocopy.save``.

    Notes
    -----
    Large storages that come from GPUs have no CRC in the file, since their bytes do not pass through the host's memory.

    Examples
    --------
    >>> import pathlib, tempfile, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> zerocopy.gds.save({"weight": torch.arange(4.0)}, path)
    >>> torch.load(path)
    {'weight': tensor([0., 1., 2., 3.])}
    """
    path = path_of_file(path)
    required(require, path.absolute().parent)
    if is_special(path):  # a pipe, say: one byte after the other is all that it takes
        if require is not None:
            raise UnsupportedError(f"{path}: expected a regular file, as cuFile needs")
        saver.save(state_dict, path, alignment=_ALIGNMENT)
        return
    _torch.log_usage("torch.save")
    parts = PickledObject(state_dict)
    name = os.fsdecode(path)
    with replacing(path) as new:
        later = _reserve(parts, new)
        if later:
            file = channel.Channel(new.descriptor, name, os.O_RDWR)
            for number, offset in later.items():
                file.write(parts.storage(number), offset)
            if require is not None and file.reason:
                raise UnsupportedError(f"{name}: GPUDirect Storage ({require}) is required: {file.reason}")


def _reserve(parts: PickledObject, new: NewFile) -> dict[int, int]:
    """Write the archive; of storages on devices only the room. Return their numbers, and where the room begins."""
    later = {}
    with MappedFiles() as mapped:
        plan = CheckpointPlan(new, _ALIGNMENT, checksum=True, regular=True)
        plan.pickle(parts.pickle)
        for number, size in enumerate(parts.sizes):
            if size >= channel.LARGE and parts.storage(number).device.type in cufile.DEVICES:
                later[number] = plan.hole(str(number), size)
            else:
                parts.add(number, plan, mapped)
        plan.finish()
        plan.carry_out()
    return {} if _torch.skips_data() else later
