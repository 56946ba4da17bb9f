"""``zerocopy.skip_data`` and ``zerocopy.storage_offsets``: checkpoints whose bytes other programs write or read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from zerocopy import _torch
from zerocopy._typing import File
from zerocopy.display import listed
from zerocopy.errors import UnsupportedError
from zerocopy.loading import inputs
from zerocopy.loading.explain import explain
from zerocopy.loading.formats import model_folder


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


def storage_offsets(path: File) -> dict[str, Extent]:
    """Return where the bytes of each storage are in a checkpoint.

    The offsets are those that torch 2.7 and later set as ``_checkpoint_offset``, on every release.

    Parameters
    ----------
    path : str, PathLike, URL, binary file object or buffer
        A checkpoint of one file, in any format that ``zerocopy.load`` maps. In a file object, offsets count from its
        current position, which does not change.

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
        The checkpoint is a TorchScript archive, or has several files, or has a storage whose bytes do not have an
        offset in the file: a deflated one, or a chunked HDF5 dataset.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> zerocopy.save({"weight": torch.arange(4.0), "bias": torch.ones(2)}, file.name, alignment=4096)
    >>> {key: (extent.offset % 4096, extent.size) for key, extent in zerocopy.storage_offsets(file.name).items()}
    {'0': (0, 16), '1': (0, 8)}
    """
    found = explain(path)
    if found.container == "torchscript":
        raise UnsupportedError(f"{found.name}: a TorchScript archive: only torch.jit.load knows its storages")
    if found.container in ("sharded", "distributed"):
        files = listed(model_folder.files_of(inputs.located(path)))
        raise UnsupportedError(
            f"{found.name}: expected a checkpoint of one file, found one of several: {files}"
        )
    for storage in found.storages:
        # An HDF5 dataset of several pieces has no offset.
        if storage.how == "inflated" or (storage.nbytes and not storage.offset):
            raise UnsupportedError(
                f"{found.name}: the bytes of storage {storage.key!r} do not have an offset in the file: {storage.why}"
            )
    return {storage.key: Extent(storage.offset, storage.nbytes) for storage in found.storages}
