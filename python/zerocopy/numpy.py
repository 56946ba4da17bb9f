"""Arrays over the mapped files of a checkpoint, without torch: ``zerocopy.numpy.open`` and ``zerocopy.numpy.load``.

Files are read as ``zerocopy ls`` reads them: nothing that a file names is imported or called.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pickle import UnpicklingError
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy

from zerocopy import _core
from zerocopy._typing import File
from zerocopy.catalogue.checkpoint_file import open_checkpoint
from zerocopy.catalogue.files import Trouble
from zerocopy.display import count, listed, shown
from zerocopy.errors import ClosedError, Error, FormatError, UnsupportedError
from zerocopy.lazy.names import no_such_name
from zerocopy.loading import file_objects
from zerocopy.loading.formats import dcp_metadata, model_folder, shard_index
from zerocopy.remote import RemotePath
from zerocopy.remote.file import without_password

__all__ = ["Arrays", "load", "open"]

Array = numpy.ndarray[Any, numpy.dtype[Any]]

_OF_NUMPY = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}
_OF_ML_DTYPES = ("bfloat16", "float8_")  # how the names of those begin that torch and ml_dtypes both have
_VIEWS = {"uint8": 1, "uint16": 2, "uint32": 4}


class Arrays(Mapping[str, Array]):
    """An open checkpoint: a read-only mapping from dotted names to arrays, and a context manager.

    Names are those of ``zerocopy.open``. An array is made when its name is asked for, and no byte is read until it is
    touched. Names that share a storage give views of the same memory. ``zerocopy.numpy.open`` makes them.
    """

    def __init__(self, path: str, homes: dict[str, Callable[[str], Array]]) -> None:
        self._path, self._homes, self._closed = path, homes, False  # homes: functions that make the arrays

    def __getitem__(self, name: str) -> Array:
        homes = self._opened()
        try:
            make = homes[name]
        except (KeyError, TypeError):
            raise no_such_name(self._path, name, homes) from None
        with _about(self._path):
            return make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())

    def __contains__(self, name: object) -> bool:
        return name in self._opened()  # The default would make the array.

    def __repr__(self) -> str:
        if self._closed:
            return f"<closed Arrays {shown(self._path)}>"
        return f"<Arrays {shown(self._path)}, {count(len(self), 'array')}>"

    def close(self) -> None:
        """Close the files. Arrays that were taken stay valid."""
        self._closed = True
        self._homes = {}

    def __enter__(self) -> Arrays:
        self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> dict[str, Callable[[str], Array]]:
        if self._closed:
            raise ClosedError(f"{self._path} is closed")
        return self._homes


def open(
    path: File,
    *,
    mode: Literal["c", "r"] = "c",
    view: str | Sequence[str] = (),
    strict: bool = True,
) -> Arrays:
    """Open a checkpoint as a mapping from names to arrays over the mapped file. PyTorch is not needed.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        A ``.pt``, ``.safetensors`` or HDF5 file, an index of shards, or a folder: also of
        ``torch.distributed.checkpoint``; or a URL, where an array is requested when its name is asked for. A file
        object is read from its current position: mapped if it is a file on disk, else read as its arrays are asked
        for. Arrays of a buffer are copies, with ``mode="r"`` views.
    mode : {"c", "r"}
        numpy's letters. "c", copy-on-write: what the program writes stays in this process. "r": arrays are read-only.
    view : str or sequence of str
        Unsigned integers that show the bits of elements for which NumPy has no dtype: "uint16" for bfloat16, "uint8"
        for float8. Without it, such arrays have the dtypes of ``ml_dtypes``, if that package is installed.
    strict : bool
        As in ``zerocopy.load``: False takes what the shards of a wrong index have.

    Returns
    -------
    Arrays
        The tensors; all other values are left out. A record that is compressed, big-endian or not aligned for its
        elements is read when its array is asked for, and so is a tensor in several chunks.

    Raises
    ------
    OSError
        The operating system refused.
    zerocopy.FormatError, pickle.UnpicklingError
        The bytes contradict the format, or are not a checkpoint.
    zerocopy.UnsupportedError
        NumPy has no array for a tensor (sparse, quantized, a dtype that it lacks). The mapping raises it for that
        name only.

    Examples
    --------
    >>> import tempfile, torch, zerocopy.numpy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(6.0).view(2, 3), "step": 7}, file.name)
    ...     with zerocopy.numpy.open(file.name) as arrays:
    ...         names, weight = list(arrays), arrays["weight"]
    >>> names, weight[1]
    (['weight'], array([3., 4., 5.], dtype=float32))
    """
    return _arrays(path, _Options(mode, view), strict)


def load(
    path: File,
    *,
    mode: Literal["c", "r"] = "c",
    view: str | Sequence[str] = (),
    strict: bool = True,
) -> dict[str, Array]:
    """Return the arrays of a checkpoint by dotted names, over the mapped file. PyTorch is not needed.

    Parameters
    ----------
    path, mode, view, strict
        As in :func:`open`.

    Returns
    -------
    dict of str to numpy.ndarray
        All tensors, in file order. Values that are not tensors are left out. A file at a URL is requested as a whole.

    Raises
    ------
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As :func:`open`; also where NumPy has no array for one of the tensors. :func:`open` gives the others.

    Examples
    --------
    >>> import tempfile, torch, zerocopy.numpy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"model": {"bias": torch.ones(2)}}, file.name)
    ...     zerocopy.numpy.load(file.name)
    {'model.bias': array([1., 1.], dtype=float32)}
    """
    with _arrays(path, _Options(mode, view, takes_all=True), strict) as arrays:
        return dict(arrays)


def _arrays(f: Any, options: _Options, strict: bool) -> Arrays:
    with _about(title := _title(f)):
        match model_folder.located(f, strict):
            case shard_index.Index() as index:
                shards = shard_index.present(index, strict)
                held = {shard: _of_file(shard, options) for shard in shards}
                homes = shard_index.homes(index, held, strict)
                return Arrays(title, {key: held[shard][key] for key, shard in homes.items()})
            case dcp_metadata.Folder() as folder:
                files = _Folder(folder, options)
                return Arrays(title, dict.fromkeys(files.tensors, files.array))
            case file:
                return Arrays(title, _of_file(file, options))


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Add the path, once, to errors about a file, and raise those of the catalogue as public ones."""
    start = f"{shown(path, None)}: "
    try:
        yield
    except Trouble as trouble:
        raise FormatError(start + str(trouble)) from None
    except (Error, UnpicklingError) as error:
        if not str(error).startswith(shown(path, None)):  # of a shard, the shard
            error.args = (start + str(error),)
        raise


class _Options:
    """The form of arrays that the caller wants."""

    def __init__(self, mode: str, view: str | Sequence[str], takes_all: bool = False) -> None:
        if mode not in ("c", "r"):
            raise ValueError(f"expected mode 'c' or 'r', found {mode!r}")
        self._views = (view,) if isinstance(view, str) else tuple(view)
        if wrong := [each for each in self._views if each not in _VIEWS]:
            raise ValueError(f"expected view among {listed(_VIEWS)}, found {wrong[0]!r}")
        self.is_writable, self.takes_all = mode == "c", takes_all

    def dtype(self, name: str, dtype: str) -> numpy.dtype[Any]:
        """Return NumPy's dtype for torch's name of one."""
        if dtype in _OF_NUMPY:
            return numpy.dtype(dtype)
        width = _core.itemsize(dtype)
        for view in self._views:
            if _VIEWS[view] == width:
                return numpy.dtype(view)
        remedy = f'view="uint{8 * width}" gives its bits'
        if dtype.startswith(_OF_ML_DTYPES):
            with contextlib.suppress(ImportError, AttributeError):
                return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), dtype))
            remedy = f"install ml_dtypes (pip install ml_dtypes); or {remedy}"
        raise UnsupportedError(f"{shown(name)} is of {dtype}, which NumPy lacks: {remedy}")

    def finished(self, array: Array) -> Array:
        """Return a new array, which can be written to as those that are mapped."""
        array.flags.writeable = self.is_writable
        return array


class _Checkpoint:
    """The tensors of one file, or of an archive that is a part of a file."""

    def __init__(self, found: tuple[dict[str, Any], _core.Storages], options: _Options) -> None:
        self.facts, self._storages = found
        self.tensors = {tensor.name: tensor for tensor in self.facts["tensors"]}
        self._options = options
        self._held: WeakValueDictionary[int, _core.Memory] = WeakValueDictionary()

    def array(self, name: str, title: str | None = None) -> Array:
        """Return an array. `title` is the name in errors."""
        tensor, title = self.tensors[name], name if title is None else title
        if tensor.storage is None:
            made_by = f"{shown(title)} is made by {tensor.made_by}"
            raise UnsupportedError(f"{made_by}: NumPy has arrays for dense tensors only")
        dtype = self._options.dtype(title, tensor.dtype)
        strides = [dtype.itemsize * step for step in tensor.stride]
        nothing: Any = bytearray() if self._options.is_writable else b""
        memory, begin = (self._memory(tensor.storage), tensor.begin) if tensor.nbytes else (nothing, 0)
        try:
            array = numpy.ndarray(tensor.shape, dtype, memory, begin, strides)
        except ValueError as error:  # of too many dimensions, say
            raise UnsupportedError(f"{shown(title)}: NumPy has no such array: {error}") from None
        if not (tensor.is_conjugate or tensor.is_negative):
            return array
        if tensor.nbytes > self.facts["storages"][tensor.storage].nbytes:  # a stride of 0 repeats elements
            raise UnsupportedError(f"{shown(title)} is conjugated or negated, and larger than its storage")
        array = array.conj() if tensor.is_conjugate else array
        return self._options.finished(-array if tensor.is_negative else array)

    def _memory(self, number: int) -> Any:
        """Return a storage's bytes: the same object for all names over it."""
        return self._held.get(number) or self._held.setdefault(number, self._storages.memory(number))


def _of_file(f: Any, options: _Options) -> dict[str, Callable[[str], Array]]:
    begin = file_objects.position_of(f)
    with _about(title := _title(f)):
        file, listing = open_checkpoint(f, options.is_writable, options.takes_all)
        found = _Checkpoint(file.contents(listing), options)
    if begin is not None and options.takes_all:  # where the next call goes on, as after zerocopy.load
        f.seek(begin + found.facts["end"])
    if left_out := found.facts["left_out"]:  # of HDF5
        from zerocopy.loading.formats import hdf5

        if numbers := hdf5.numbers_left_out(left_out):
            warnings.warn(f"{shown(title)}: no array has {listed(map(shown, numbers))}", stacklevel=4)
    return dict.fromkeys(found.tensors, found.array)


def _title(f: Any) -> str:
    return without_password(str(f) if isinstance(f, RemotePath) else file_objects.name_of(f))


class _Folder:
    """The tensors of a folder of ``torch.distributed.checkpoint``. Each file is mapped once."""

    def __init__(self, folder: dcp_metadata.Folder, options: _Options) -> None:
        self._folder, self._options, self.tensors = folder, options, folder.tensors
        self._total = sum(place.length for place in folder.places)
        self._files: dict[str, _core.CheckpointFile] = {}
        self._whole: dict[str, _Checkpoint] = {}

    def array(self, name: str) -> Array:
        """Return a tensor over its file, or joined from its chunks."""
        entry = self.tensors[name]
        if len(entry.chunks) == 1:
            return self._chunk(name, entry, entry.chunks[0])
        # Before there is memory for it: a stranger's .metadata may say any number.
        if prod(entry.shape) and entry.nbytes > sum(chunk.place.length for chunk in entry.chunks):
            raise FormatError(f"{shown(name)} is larger than its chunks")
        whole = numpy.empty(entry.shape, self._options.dtype(name, entry.dtype))
        for chunk in entry.chunks:
            extents = zip(chunk.offsets, chunk.sizes, strict=True)
            place = tuple(slice(begin, begin + size) for begin, size in extents)
            whole[place] = self._chunk(name, entry, chunk)
        return self._options.finished(whole)

    def _chunk(self, name: str, entry: dcp_metadata.Chunked, chunk: dcp_metadata.Chunk) -> Array:
        place = chunk.place
        with _about(place.file):
            if place.file not in self._files:
                options = self._options
                self._files[place.file], _ = open_checkpoint(
                    place.file, options.is_writable, options.takes_all
                )
            part = self._part(place)
            key = name if self._folder.is_safetensors else ""
            tensor = part.tensors.get(key)
            if tensor is None or (tensor.shape, tensor.dtype) != (chunk.sizes, entry.dtype):
                raise FormatError(f"the bytes at {place.offset:#x} are not a chunk of {shown(name)}")
            return part.array(key, name)

    def _part(self, place: dcp_metadata.ArchiveExtent) -> _Checkpoint:
        file = self._files[place.file]
        if self._folder.is_safetensors:
            if place.file not in self._whole:
                self._whole[place.file] = _Checkpoint(file.contents(), self._options)
            return self._whole[place.file]
        part = _Checkpoint(file.contents(None, (place.offset, place.length, self._total)), self._options)
        if part.facts["container"] != "zip" or part.facts["end"] != place.length:
            raise FormatError(f"the bytes at {place.offset:#x} are not a file of torch.save")
        return part
