"""``NotYetLoadedTensor``: a tensor whose shape is known, and whose data are loaded when it is used."""

from __future__ import annotations

import sys
import weakref
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch

from zerocopy import _torch, notebook
from zerocopy._torch import context, modules
from zerocopy.display import dtype, shape, size
from zerocopy.lazy import torch_functions
from zerocopy.lazy.torch_functions import lent_argument, replaced
from zerocopy.loading.extents import is_basic

#: A notebook looks these names up in every object. Showing a placeholder must not load it.
_NOTEBOOK = ("_repr_", "_ipython_")


class NotYetLoadedTensor(torch.Tensor):
    """A tensor of a checkpoint whose data are not loaded yet.

    A placeholder works everywhere in place of the real tensor. Operations, indexing, NumPy, pickling and
    ``torch.nn.Parameter`` load the real tensor, and give the result for that; operations keep it for later. Shape,
    dtype, device and strides are known without a load.

    ``zerocopy.lazy_load`` and ``zerocopy.open`` make placeholders.

    Notes
    -----
    A placeholder does not keep its real tensor if it is the source of ``copy_``, as in ``load_state_dict``. So filling
    a model does not hold the whole checkpoint in memory as well.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.arange(6.0).view(2, 3)}, file.name)
    >>> weight = zerocopy.lazy_load(file.name)["weight"]
    >>> weight.shape, weight.dtype, weight.is_loaded
    (torch.Size([2, 3]), torch.float32, False)
    >>> weight[1]
    tensor([3., 4., 5.])
    >>> weight.is_loaded
    True
    """

    # (LazyFile, the file's name for the tensor), or None for a tensor that a program has made of this class.
    _recipe: Any = None
    _becomes: type | None = None  # the class of a tensor that is about to become a Parameter
    _real: torch.Tensor | None = None
    _handed_out: weakref.ref[torch.Tensor] | None = None
    _is_loaded: bool = False
    _is_dense: bool = True
    _is_scattered: bool = False  # only parts of it were read
    _is_parameter: bool = False
    _is_param = modules.parameter_flag("_is_parameter")  # what isinstance(..., nn.Parameter) asks for

    @property
    def is_loaded(self) -> bool:
        """Return whether an operation or :meth:`materialize` has loaded the data."""
        return self._is_loaded

    if not hasattr(torch.Tensor, "nbytes"):  # before 2.0

        @property
        def nbytes(self) -> int:  # type: ignore[override]
            """Bytes of all elements."""
            return int(self.numel()) * _torch.element_size(self.dtype)

    def materialize(self) -> torch.Tensor:
        """Return the real tensor.

        The caller owns the tensor. The placeholder refers to the tensor while it lives, and loads it again after that.
        A placeholder that an operation has used keeps its tensor, and returns that one.

        Returns
        -------
        torch.Tensor
            Of the class that ``zerocopy.load`` gives: ``Tensor``, ``Parameter`` or a subclass.

        Raises
        ------
        OSError, zerocopy.FormatError
            The file is gone, or was replaced, cut or written to since it was opened.
        zerocopy.Error
            The checkpoint was closed.
        """
        real = handed_out(self)
        set_own(self, "_is_loaded", True)
        return real

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, NotYetLoadedTensor):
            if first._becomes or _knows(first, func):
                with _torch.without_torch_function():
                    return func(*args, **kwargs)
            if func is torch.Tensor.__getitem__ and is_basic(args[1]):
                return _item(first, args[1])
            if func is torch.Tensor.detach and _calling_code() is _PARAMETER_NEW:
                return _parameter_to_be(first)
            if func == _GET_GRAD:
                return _gradient(first)
        return _applied(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with _torch.applying_bits():
            return _applied(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if self._real is None and name.startswith(_NOTEBOOK):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # A parameter or a subclass may have attributes of its own; its real tensor raises in its own words.
        plain = self._is_dense and not self._is_parameter and self._real is None
        own = plain or name.startswith("__")
        if self._recipe is None or (own and not hasattr(torch.Tensor, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(_kept(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._recipe is not None:
            value = replaced(value, NotYetLoadedTensor, _kept) if name == "data" else value
            setattr(_kept(self), name, value)
        elif name == "_is_param":
            _become_parameter(self)
        else:
            super().__setattr__(name, value)

    def as_subclass(self, cls: type) -> Any:
        """Return the real tensor as an instance of another class; torch does not ask ``__torch_function__`` for it."""
        return _kept(self).as_subclass(cls)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy of the real tensor. By `memo`, copies of tensors over one storage share a storage too."""
        real = _kept(self)
        return super().__deepcopy__(memo) if real is self else real.__deepcopy__(memo)

    def __delattr__(self, name: str) -> None:
        delattr(_kept(self), name)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self._becomes:
            return super().__repr__()
        if self._real is not None or self._recipe is None:
            return repr(_kept(self))
        dtype, shape = self.dtype, tuple(self.shape)
        return f"NotYetLoadedTensor(shape={shape}, dtype={dtype}, file={self._recipe[0].name!r})"

    def _repr_html_(self) -> str | None:
        """Return a table of the known facts; None after the tensor was loaded, so that a notebook shows its values."""
        if self._recipe is None or self._real is not None:
            return None
        heads, facts = ["dtype", "shape"], [dtype(self), shape(self)]
        if self._is_dense:
            heads, facts = [*heads, "bytes"], [*facts, size(self.numel() * self.element_size())]
        device, file = str(self.device), self._recipe[0].name
        return notebook.table("NotYetLoadedTensor", [*heads, "device", "file"], [[*facts, device, file]])

    def __reduce_ex__(self, protocol: Any) -> Any:
        real = real_of(self)
        if (process := get_spawning_popen()) is not None:
            # The new process opens shared memory by descriptors. Until then the real tensor must live, and the program
            # holds only the placeholder.
            process.__dict__.setdefault("_kept_by_zerocopy", []).append(real)
        return real.__reduce_ex__(protocol)


_PARAMETER_NEW = torch.nn.Parameter.__new__.__code__
_GET_GRAD = torch_functions.getter("grad")
_SET_GRAD = getattr(torch.Tensor, "grad").__set__  # noqa: B009  mypy takes the property for its value
_SET_DATA = getattr(torch.Tensor, "data").__set__  # noqa: B009


def set_own(placeholder: torch.Tensor, name: str, value: Any) -> None:
    """Set an attribute of the placeholder itself, not of its tensor."""
    object.__setattr__(placeholder, name, value)


def _knows(placeholder: NotYetLoadedTensor, func: Any) -> bool:
    """Return whether the placeholder can answer a function without its real tensor."""
    known = torch_functions.METADATA if placeholder._is_dense else torch_functions.LITTLE_METADATA
    return placeholder._real is None and func in known


def handed_out(placeholder: NotYetLoadedTensor) -> torch.Tensor:
    """Return the real tensor. The placeholder refers to it while the caller keeps it."""
    real = real_of(placeholder)
    if placeholder._real is None and placeholder._recipe is not None:
        set_own(placeholder, "_handed_out", weakref.ref(real))
    return real


def real_of(placeholder: NotYetLoadedTensor, *, scattered: bool = False) -> torch.Tensor:
    """Return the real tensor. The placeholder does not keep it, unless it did before."""
    if placeholder._recipe is None:
        return placeholder if placeholder._becomes else _torch.undispatched(placeholder)
    real = placeholder._real
    if real is None and placeholder._handed_out is not None:
        real = placeholder._handed_out()
    source, recipe = placeholder._recipe
    if real is None:
        real = source.load(recipe)
    if scattered != placeholder._is_scattered:
        source.advise(real, "scattered" if scattered else "together")
        set_own(placeholder, "_is_scattered", scattered)
    return real


def _calling_code() -> Any:
    """Return the code that called a function of torch, directly or through active modes."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def materialized(value: Any) -> Any:
    """Return the tensor that a placeholder stands for; anything else as it is."""
    return value.materialize() if isinstance(value, NotYetLoadedTensor) else value


def _kept(placeholder: NotYetLoadedTensor, *, scattered: bool = False) -> torch.Tensor:
    """Return the real tensor, and make the placeholder keep it, so that changes by an operation stay."""
    real = real_of(placeholder, scattered=scattered)
    if placeholder._real is None and placeholder._recipe is not None:
        set_own(placeholder, "_real", real)
        set_own(placeholder, "_is_loaded", True)
        if placeholder._is_dense:
            # torch.asarray sets the placeholder's flag, `x.data = placeholder` reads its data. Neither calls hooks.
            with _torch.without_torch_function():
                if placeholder.requires_grad != real.requires_grad:
                    real.requires_grad_(placeholder.requires_grad)
                if type(real) in (torch.Tensor, torch.nn.Parameter) and real.device.type != "meta":
                    _SET_DATA(placeholder, real)
    return real


def _applied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with real tensors in place of placeholders."""
    lent = lent_argument(func, args, kwargs)

    def real(placeholder: NotYetLoadedTensor) -> torch.Tensor:
        return real_of(placeholder) if placeholder is lent else _kept(placeholder)

    real_args = replaced(args, NotYetLoadedTensor, real)
    real_kwargs = replaced(kwargs, NotYetLoadedTensor, real)
    first = real_args[0] if real_args else None
    if isinstance(first, torch.Tensor) and type(first) is not torch.Tensor:
        func = _method_of(type(first), func)
    return func(*real_args, **real_kwargs)


def _method_of(cls: type, func: Any) -> Any:
    """Return a class's own method for a method of ``torch.Tensor``, which ``__torch_function__`` gets instead."""
    name = getattr(func, "__name__", "")
    return getattr(cls, name) if getattr(torch.Tensor, name, None) is func else func


# --------------------------------------------------------------------------------- parts


def _item(placeholder: NotYetLoadedTensor, index: Any) -> torch.Tensor:
    """Return a view that reads only its own part of the tensor."""
    is_new = placeholder._recipe is not None and (placeholder._real is None or placeholder._is_scattered)
    real = _kept(placeholder, scattered=is_new)
    part = real[index]
    if is_new:
        placeholder._recipe[0].advise(part, "soon")
    return part


# --------------------------------------------------------------------------------- parameters


def _parameter_to_be(placeholder: NotYetLoadedTensor) -> torch.Tensor:
    """Return an object that ``nn.Parameter`` accepts as its argument, and turns into the parameter.

    For other classes than ``Tensor``, ``nn.Parameter`` calls ``detach`` and ``requires_grad_``, compares the class, and
    sets ``_is_param``. That last step turns this object into the parameter that the real tensor would have become.
    """
    made = context.ordinarily(torch.Tensor.detach, _kept(placeholder))
    becomes = torch.nn.Parameter if type(made) is torch.Tensor else type(made)
    made.__class__ = NotYetLoadedTensor
    set_own(made, "_becomes", becomes)
    return made


def _become_parameter(made: NotYetLoadedTensor) -> None:
    becomes = made.__dict__.pop("_becomes")
    made.__class__ = becomes
    if becomes is not torch.nn.Parameter:
        made._is_param = True


def _gradient(placeholder: NotYetLoadedTensor) -> torch.Tensor | None:
    """Return the real tensor's gradient, with what autograd's C++ side has left at the placeholder."""
    real = _kept(placeholder)
    with _torch.without_torch_function():
        own = _GET_GRAD(placeholder)
        if own is not None:
            _SET_GRAD(placeholder, None)
            real.grad = own if real.grad is None else real.grad + own
    return real.grad
