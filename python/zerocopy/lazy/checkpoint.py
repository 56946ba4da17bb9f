"""``zerocopy.Checkpoint``: a mapping from dotted names to tensors that are read when they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, NoReturn

import torch

from zerocopy import display, notebook
from zerocopy._typing import Device
from zerocopy.errors import ClosedError
from zerocopy.lazy.layer import Layer
from zerocopy.lazy.names import no_such_name
from zerocopy.lazy.placeholder import materialized
from zerocopy.lazy.reading import parts as parts_reading
from zerocopy.lazy.reading.read_plan import ReadPlan
from zerocopy.lazy.slice import Slice
from zerocopy.lazy.tensor_info import TensorInfo


class Checkpoint(Mapping[str, torch.Tensor]):
    """An open checkpoint: a read-only mapping from dotted names to tensors, and a context manager.

    Names join the keys of dicts and the places in lists and tuples by dots (``model.layers.0.weight``). If two names
    are equal, the later one gets ``~2`` appended. A tensor that is the whole file has the name ``""``. Tensors inside
    objects are named by attribute, those of a module as in its ``state_dict()``. ``checkpoint[name]`` is a
    ``NotYetLoadedTensor``, which reads the file when it is used; while it lives, the same name gives the same object.
    Any thread may use a checkpoint. ``zerocopy.open`` and ``zerocopy.overlay`` make them.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(2, 3), "bias": torch.zeros(2), "step": 7}, file.name)
    >>> checkpoint = zerocopy.open(file.name)
    >>> print(checkpoint.tree())
    /...: zip, 2 tensors, 32 B
      weight  float32  2 x 3  24 B
      bias    float32  2       8 B
    >>> checkpoint.info("bias").shape, [info.nbytes for info in checkpoint.tensors()]
    (torch.Size([2]), [24, 8])
    >>> checkpoint.metadata()
    {'step': 7}
    >>> checkpoint.plan({"weight": slice(0, 1)}).nbytes
    12
    """

    def __init__(self, layers: Sequence[Layer], opened: Sequence[Layer], path: str | None = None) -> None:
        """Stack `layers`, the last uppermost. `opened` are closed with the checkpoint."""
        self._layers, self._opened, self._path = tuple(layers), tuple(opened), path
        self._closed = False

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.layer_of(name).tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the lazy tensor of that name, or `default` for an unknown name."""
        layer = self._find(name)
        return default if layer is None else layer.tensor(name)

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a real tensor, as ``checkpoint[name].materialize()`` does.

        Parameters
        ----------
        name : str
            A dotted name.

        Returns
        -------
        torch.Tensor
            Mapped where the file allows it. It stays valid after :meth:`close`.

        Raises
        ------
        KeyError
            The checkpoint does not have a tensor of that name. The message lists close names.
        OSError
            The file was removed, or has changed since it was opened.
        zerocopy.FormatError
            The header of the tensor's record contradicts the file's directory.

        Examples
        --------
        >>> import tempfile, torch, zerocopy
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"model": {"bias": torch.ones(2)}}, file.name)
        ...     with zerocopy.open(file.name) as checkpoint:
        ...         bias = checkpoint.get_tensor("model.bias")
        >>> bias
        tensor([1., 1.])
        """
        return materialized(self[name])

    def get_slice(self, name: str) -> Slice:
        """Return an object whose ``[index]`` reads only that part of the tensor.

        Parameters
        ----------
        name : str
            A dotted name.

        Returns
        -------
        Slice
            It has ``shape``, ``dtype``, and the methods of a slice of safetensors.

        Raises
        ------
        KeyError
            As :meth:`get_tensor`. Indexing raises the other errors of that method.

        Examples
        --------
        >>> import tempfile, torch, zerocopy
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"weight": torch.arange(12.0).view(3, 4)}, file.name)
        ...     with zerocopy.open(file.name) as checkpoint:
        ...         checkpoint.get_slice("weight")[1:, 0]
        tensor([4., 8.])
        """
        return self.layer_of(name).slice(name)

    def read(
        self,
        parts: Mapping[str, Any],
        *,
        device: Device = None,
        into: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Read parts of many tensors at once, with planned, parallel requests that fill the tensors directly.

        Parameters
        ----------
        parts : mapping of str to index
            The part of each tensor to read: a slice, an integer, a tuple of these, or ``...`` for the whole.
        device : optional
            Where the results go. Default: the ``device=`` that the checkpoint was opened with, or the CPU.
        into : mapping of str to torch.Tensor, optional
            Tensors to fill, by name. Other names get new tensors. Values are cast to the dtype of the tensor to fill.

        Returns
        -------
        dict of str to torch.Tensor
            By name, in the order of `parts`. They have memory of their own.

        Raises
        ------
        KeyError
            The checkpoint does not have a tensor of that name.
        IndexError, TypeError, ValueError
            torch raises the same error for this index; or a tensor of `into` has another shape than the part.
        OSError
            The operating system refused, or a file changed since it was opened.

        Examples
        --------
        >>> import tempfile, torch, zerocopy
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"weight": torch.arange(12.0).view(3, 4), "bias": torch.ones(4)}, file.name)
        ...     with zerocopy.open(file.name) as checkpoint:
        ...         checkpoint.read({"weight": (slice(1, 3), 0), "bias": ...})
        {'weight': tensor([4., 8.]), 'bias': tensor([1., 1., 1., 1.])}
        """
        return parts_reading.read(parts_reading.CheckpointSource(self), parts, device, into)

    def plan(self, parts: Mapping[str, Any]) -> ReadPlan:
        """Return which requests :meth:`read` would make: bytes, number, and files. No tensor is read.

        Parameters
        ----------
        parts : mapping of str to index
            As for :meth:`read`.

        Returns
        -------
        ReadPlan
            It has ``nbytes``, ``bytes_read`` and ``requests``. ``describe()`` shows it.

        Raises
        ------
        KeyError, IndexError, TypeError, OSError
            As :meth:`read`.
        """
        return parts_reading.plan(parts_reading.CheckpointSource(self), parts)

    def info(self, name: str) -> TensorInfo:
        """Return the facts that the file states about a tensor. Its data are not read.

        Parameters
        ----------
        name : str
            A dotted name.

        Returns
        -------
        TensorInfo
            Shape, dtype, strides, bytes, place in the file, and tied tensors.

        Raises
        ------
        KeyError
            As :meth:`get_tensor`.
        """
        layer = self.layer_of(name)
        return self._seen(layer.info(name), layer)

    def tensors(self) -> list[TensorInfo]:
        """Return the facts about each tensor, in file order. No data are read.

        Returns
        -------
        list of TensorInfo
            One for each name, as :meth:`info` returns it.
        """
        infos = {info.name: self._seen(info, layer) for layer in self.layers for info in layer.infos()}
        return list(infos.values())

    def metadata(self) -> dict[str, Any]:
        """Return the values that are not tensors.

        Returns
        -------
        dict of str to object
            The values by dotted name. For a ``.safetensors`` file, its metadata.
        """
        said: dict[str, Any] = {}
        for layer in self.layers:
            said |= layer.metadata()
        return said

    @property
    def path(self) -> str:
        """The file's path, or the name in messages for a source without one. An overlay joins them by ``" + "``."""
        return self._path or " + ".join(layer.path for layer in self._layers)

    def tree(self, depth: int | None = None) -> str:
        """Return an outline to be printed: names nested at the dots, with dtypes, shapes, bytes, and sums.

        Parameters
        ----------
        depth : int, optional
            The number of levels to show. Sums count all levels.

        Returns
        -------
        str
            A line for each tensor and branch. The class has an example.
        """
        infos = self.tensors()
        return display.outline(self._title(infos), infos, depth)

    def __repr__(self) -> str:
        if self.closed:
            return f"<closed Checkpoint {display.shown(self.path)}>"
        return f"<Checkpoint {display.shown(self.path)}, {display.count(len(self), 'tensor')}>"

    def _repr_html_(self) -> str | None:
        if self.closed:
            return None  # a notebook shows repr()
        infos = self.tensors()
        return notebook.table_of_tensors(self._title(infos), infos)

    def _ipython_key_completions_(self) -> list[str]:
        return [] if self.closed else list(self)

    def close(self) -> None:
        """Close the file. A ``with`` block does so at its end.

        Other methods, and lazy tensors that were not loaded, then raise ``ClosedError``. Tensors that were read stay
        valid.
        """
        self._closed = True
        for layer in self._opened:
            layer.close()

    @property
    def closed(self) -> bool:
        """Return whether the checkpoint, or one of the files of an overlay, was closed."""
        return self._closed or any(layer.closed for layer in self._layers)

    def __enter__(self) -> Checkpoint:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open Checkpoint cannot be copied or pickled: pass its path on, and open that")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the checkpoint, the uppermost last. A layer is a file, or a mapping of tensors."""
        self._require_open()
        return self._layers

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path} is closed")

    def _seen(self, info: TensorInfo, layer: Layer) -> TensorInfo:
        """Return the facts about a tensor of a layer, without ties to tensors that a layer above hides."""
        if len(self.layers) == 1 or not info.tied:
            return info
        owners = self._owners
        return info._replace(tied=tuple(other for other in info.tied if owners.get(other) is layer))

    def _find(self, name: object) -> Layer | None:
        """Return the uppermost layer that has a name; None for an unknown name."""
        if len(self.layers) == 1:
            return self.layers[0] if name in self.layers[0] else None
        return self._owners.get(name) if isinstance(name, str) else None

    @cached_property
    def _owners(self) -> dict[str, Layer]:
        """The layer of each name, for look-ups of many names."""
        return {name: layer for layer in self.layers for name in layer.names()}

    def layer_of(self, name: object) -> Layer:
        """Return the layer that a tensor is read from. Raise KeyError for an unknown name."""
        if (layer := self._find(name)) is None:
            others = (other for each in self.layers for other in each.other_names())
            raise no_such_name(self.path, name, self, others)
        return layer

    def _names(self) -> Collection[str]:
        """Return all names, in the order of their first appearance."""
        if len(self.layers) == 1:
            return self.layers[0].names()
        return dict.fromkeys(name for layer in self.layers for name in layer.names())

    def _title(self, infos: Sequence[TensorInfo]) -> str:
        containers = ", ".join(dict.fromkeys(layer.container for layer in self._layers))
        sums = f"{display.count(len(infos), 'tensor')}, {display.size(display.total(infos))}"
        return f"{display.shown(self.path)}: {containers}, {sums}"
