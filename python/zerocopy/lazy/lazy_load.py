"""``zerocopy.lazy_load``."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterable
from typing import Any

import torch

from zerocopy._native import _C
from zerocopy._torch import context
from zerocopy._typing import Backend, Device, File, Mode, Unknown
from zerocopy.errors import Error
from zerocopy.lazy import file as lazy_file
from zerocopy.lazy.names import Predicate, Selection
from zerocopy.lazy.opening import open_shards
from zerocopy.lazy.options import LazyOptions, checked
from zerocopy.lazy.placeholder_builder import Deferred, loaded, only_keeps, plain_state
from zerocopy.loading import error_context, inputs
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.readers.unpickler import StorageUnpicklerMixin


def lazy_load(
    path: File,
    *,
    dtype: torch.dtype | None = None,
    device: Device = None,
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
    predicate: Predicate | None = None,
    weights_only: bool | None = True,
    backend: Backend = "auto",
    mode: Mode = "c",
    encoding: str = "utf-8",
    unknown: Unknown = "refuse",
    strict: bool = True,
) -> Any:
    """Load what ``torch.save`` wrote, with placeholders for its tensors.

    The object is the one that ``zerocopy.load`` returns, but its tensors are :class:`zerocopy.NotYetLoadedTensor`. They
    take no memory and no address space until they are used. Both are released with the last real tensor.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``. A file object that can seek is read when tensors are used, at their offsets: keep it open.
    dtype : torch.dtype, optional
        The dtype that floating-point tensors are cast to when they are loaded. Complex tensors need a complex
        dtype.
    device : torch.device or str, optional
        Where tensors go when they are loaded; default: where they were saved from.
    keys, prefix, predicate : optional
        Select leaves by dotted name (``"model.layers.0.weight"``). `keys` are names of leaves or branches,
        `prefix` is the beginning of names, and `predicate` is a function of a name. A leaf must satisfy each
        of the three that is given. Other leaves are left out of dicts, and are None in lists and tuples. An object that
        is not selected becomes a dict of the selected tensors inside it.
    weights_only : bool
        As for ``load``.
    backend : {"auto", "mmap", "pread", "direct"}
    mode : {"c", "r", "r+"}
    encoding : str
    unknown : {"refuse", "stub"}
    strict : bool
        As for ``load``.

    Returns
    -------
    object
        The saved object, with placeholders.

    Raises
    ------
    KeyError
        A name in `keys` is neither a leaf nor a branch.
    OSError, zerocopy.FormatError, pickle.UnpicklingError, zerocopy.UnsupportedError
        As ``load``. If the file is damaged or replaced later, a placeholder raises the error when it is used.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"model": {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "step": 7}, file.name)
    >>> zerocopy.lazy_load(file.name)["model"]["weight"].shape
    torch.Size([2, 3])
    >>> zerocopy.lazy_load(file.name, dtype=torch.float16, keys=["model.bias", "step"])
    {'model': {'bias': NotYetLoadedTensor(shape=(2,), dtype=torch.float16, file=...)}, 'step': 7}
    """
    options = checked(dtype, device, weights_only, backend, mode, encoding, unknown, strict)
    selection = Selection(keys, prefix, predicate)
    match inputs.located(path, strict):
        case shard_index.Index() as index:
            checkpoint = open_shards(index, options, selection)
            return {
                name: checkpoint[name]
                for name in dict.fromkeys([*index.homes, *checkpoint])
                if name in checkpoint
            }
        case dcp_metadata.Folder() as folder:
            return _built(lazy_file.read_folder(folder, options), selection)
        case file:
            return _load_file(file, options, selection)


def _built(file: lazy_file.LazyFile, selection: Selection) -> Any:
    return file.native.build(file.objects(), selection.chosen(file.native))


@context.outside_dispatch_modes
def _load_file(f: Any, options: LazyOptions, selection: Selection) -> Any:
    # Selecting by dotted name needs the safe machine, because pickle's own unpickler does not know these names.
    trusting = not options.load.weights_only and selection.is_of_all
    with error_context.public(f, weights_only=not trusting):
        opened = lazy_file.open_archive(f, options.load)
        if not (trusting and opened.archive.is_pickled):
            return _built(lazy_file.read_archive(opened, options), selection)
        with contextlib.suppress(Error, pickle.UnpicklingError):
            return _built(lazy_file.read_archive(opened, options), selection)
        return _load_trusting(opened, options)


def _load_trusting(opened: lazy_file.Opened, options: LazyOptions) -> Any:
    """Load with pickle, which runs code that the file names, with placeholders for tensors."""
    archive, load = opened.archive, options.load
    source = lazy_file.LazyFile(archive, opened.name, options)
    pickled = io.BytesIO(archive.pickle())
    unpickling = LazyUnpickler(
        pickled, archive, source.objects(), map_location=load.map_location, encoding=load.encoding
    )
    result = unpickling.load()
    unpickling.read_storages()
    opened.finish()
    return result


_PythonUnpickler: Any = pickle._Unpickler


class LazyUnpickler(StorageUnpicklerMixin, _PythonUnpickler):  # type: ignore[misc]
    """Puts placeholders where tensors would be, and hands real ones to the code of the file (``weights_only=False``).

    That code may be C++, which would store a placeholder as an ordinary tensor. Objects that take their attributes from
    a dict, as modules do, keep placeholders. The base class is the unpickler in Python, because only that one lets its
    steps be overridden.
    """

    def __init__(self, file: Any, archive: _C.Archive, objects: Deferred, **pickle_args: Any) -> None:
        super().__init__(file, archive, **pickle_args)
        self._objects = objects

    def find_class(self, module: str, name: str) -> Any:
        """Return the global that a file names; for torch's tensor builders, a function that makes placeholders."""
        return self._objects.later(super().find_class(module, name), f"{module}.{name}")

    def _load_reduce(self) -> None:
        function, arguments = self.stack[-2:]
        if not hasattr(function, "rebuilds"):  # not a function that find_class has put there
            self.stack[-2:] = self._objects.made_at_once, (function, arguments)
        super().load_reduce()

    def _load_newobj(self) -> None:
        if not only_keeps(self.stack[-2]):
            self.stack[-1] = loaded(self.stack[-1])
        super().load_newobj()

    def _load_newobj_ex(self) -> None:
        self.stack[-2:] = loaded(self.stack[-2:])
        super().load_newobj_ex()

    def _load_append(self) -> None:
        value = self.stack.pop()
        self.stack[-1].extend([value])  # pickle's C implementation calls extend() too

    def _load_build(self) -> None:
        self.stack[-1] = plain_state(self.stack[-1])
        super().load_build()

    dispatch = _PythonUnpickler.dispatch | {
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.NEWOBJ_EX[0]: _load_newobj_ex,
        pickle.APPEND[0]: _load_append,
        pickle.BUILD[0]: _load_build,
    }
