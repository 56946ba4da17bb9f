"""``zerocopy.skip_data`` and ``zerocopy.storage_offsets``: checkpoints whose bytes other programs write or read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from zerocopy import _core, _torch
from zerocopy.errors import Error, UnsupportedError
from zerocopy.loading import diagnosis, error_context, inputs
from zerocopy.loading.formats.hdf5_stream import Image


class Extent(NamedTuple):
    """The place of bytes in a file.

    Attributes
    ----------
    offset : int
        Position of the first byte.
    size : int
        Number of bytes.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(4)}, file.name)
    ...     zerocopy.storage_offsets(file.name)["0"].size
    16
    """

    offset: int
    size: int


@contextmanager
def skip_data(materialize_fake_tensors: bool = False) -> Iterator[None]:
    """Skip the bytes of storages within a block: save reserves space for them, load leaves storages uninitialised.

    In the block, ``zerocopy.save`` and ``zerocopy.Writer`` write a complete file except for the bytes of storages,
    which are zeros, stored as a hole. ``zerocopy.load``, ``lazy_load`` and ``open`` return tensors over uninitialised
    memory. :func:`storage_offsets` says where the bytes belong, so that another program can write or read them, as with
    GPUDirect Storage. The block applies to its own thread, and also to ``torch.save`` if torch has a ``skip_data``.

    Parameters
    ----------
    materialize_fake_tensors : bool
        Save fake tensors (``torch._subclasses.FakeTensor``) as the tensors that they stand for. A release without
        ``torch.serialization.skip_data`` raises ``UnsupportedError``.

    Examples
    --------
    >>> import tempfile, pathlib, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> weight = torch.arange(4.0)
    >>> with zerocopy.skip_data():
    ...     zerocopy.save({"weight": weight}, path)
    >>> torch.load(path)
    {'weight': tensor([0., 0., 0., 0.])}
    >>> place = zerocopy.storage_offsets(path)["0"]
    >>> with path.open("r+b") as file:
    ...     _ = file.seek(place.offset)
    ...     file.write(weight.numpy().tobytes()) == place.size
    True
    >>> torch.load(path)
    {'weight': tensor([0., 1., 2., 3.])}
    """
    if materialize_fake_tensors and not _torch.has_skip_data():
        raise UnsupportedError(
            "materialize_fake_tensors needs torch.serialization.skip_data: PyTorch 2.6 or later"
        )
    with _torch.skipping_data(materialize_fake_tensors):
        yield


def storage_offsets(path: str | os.PathLike[str]) -> dict[str, Extent]:
    """Return where the bytes of each storage are in a checkpoint.

    The offsets are those that torch 2.7 and later set as ``_checkpoint_offset``, on every release.

    Parameters
    ----------
    path : str or PathLike
        A checkpoint of one file, in any format that ``zerocopy.load`` maps.

    Returns
    -------
    dict of str to Extent
        Keys are the names of storages in the file, in the order in which the file refers to them. The storage of a
        tensor is ``zerocopy.open(path).info(name).storage``. Nothing of the file is run or built.

    Raises
    ------
    OSError, zerocopy.FormatError
        As ``zerocopy.load``.
    zerocopy.UnsupportedError
        The file is a TorchScript archive, or has a deflated storage, whose bytes do not have an offset in the file.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> zerocopy.save({"weight": torch.arange(4.0), "bias": torch.ones(2)}, file.name, alignment=4096)
    >>> {key: (extent.offset % 4096, extent.size) for key, extent in zerocopy.storage_offsets(file.name).items()}
    {'0': (0, 16), '1': (0, 8)}
    """
    with inputs.descriptor_of(path) as descriptor, error_context.public(path):
        try:
            found = _core.examine(descriptor, os.fsdecode(path), 0, stubs=True)
        except Error as error:  # the core says no more about a file that is not an archive
            image = Image.of_descriptor(os.dup(descriptor), 0, os.fsdecode(path))
            raise diagnosis.diagnose(image.sample(), error) from None
        if found["container"] == "torchscript":
            raise UnsupportedError("a TorchScript archive: only torch.jit.load knows its storages")
        for storage in found["storages"]:
            if storage.is_deflated:
                raise UnsupportedError(
                    f"storage {storage.key!r} is deflated, so its bytes do not have an offset in the file"
                )
        return {storage.key: Extent(storage.offset, storage.stored_size) for storage in found["storages"]}
