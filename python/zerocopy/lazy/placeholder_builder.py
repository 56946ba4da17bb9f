"""Replaces :mod:`zerocopy.loading.objects.builder` in lazy loads: it makes placeholders instead of tensors.

The native builder makes those of dense tensors that stay on the CPU itself, and is handed a :class:`Deferred` for the
rest.
"""

from __future__ import annotations

import contextvars
import operator
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import sparse
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.placeholder import NotYetLoadedTensor, handed_out, set_own
from zerocopy.lazy.torch_functions import replaced
from zerocopy.loading.objects import builder, rebuild
from zerocopy.loading.objects.rebuild.registry import are_integers
from zerocopy.process.fork_safe import ForkSafeLock

Shape = Sequence[int]


class TensorRecipe:
    """The call that makes a tensor, and the attributes that the file gives it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.attributes: list[Any] = []
        self._making = ForkSafeLock()
        self._maker: int | None = None  # a thread
        self._context = contextvars.copy_context()  # with what was allowed when the file was read

    def made(self) -> torch.Tensor:
        """Return the tensor."""
        # The thread that makes the tensor comes here again only if the tensor is among its own arguments.
        with self._making.held():
            if self._maker == threading.get_ident():
                raise UnsupportedError("cyclic tensor: it is among its own arguments")
            self._maker = threading.get_ident()
            try:
                return self._context.copy().run(self._made)
            finally:
                self._maker = None

    def _made(self) -> torch.Tensor:
        with sparse.checking():
            tensor: torch.Tensor = self.function(*loaded(self.arguments))
        for state in self.attributes:
            builder.set_attributes(tensor, state)
        return tensor


class RebuildFacts(NamedTuple):
    """The facts about a tensor in the arguments of its rebuild function."""

    size: Shape
    dtype: torch.dtype
    requires_grad: bool = False
    stride: Shape | None = None  # of dense ones
    offset: int = 0  # in its storage


class Deferred:
    """The interface of the builder to one source of tensors, a ``zerocopy.lazy.lazy_load.LazyFile``.

    `charge` is called before each tensor is made, and may raise.
    """

    placeholder_class = NotYetLoadedTensor

    def __init__(self, source: Any, charge: Callable[[], None] | None = None) -> None:
        self.source, self._charge = source, charge
        # The native builder makes the placeholders itself unless this is true.
        self.converts: bool = source.options.converts or charge is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(builder, name)

    def placeholder(
        self,
        index: int,
        offset: int,
        size: Shape,
        stride: Shape,
        dtype: torch.dtype,
        location: str,
        requires_grad: bool,
    ) -> Any:
        """Return the placeholder of a dense tensor that will be converted."""
        self._charged()
        return self._made(index, RebuildFacts(size, dtype, requires_grad, stride, offset), location)

    def parameter(self, data: Any, requires_grad: bool) -> Any:
        """Return the placeholder of a parameter."""
        if not isinstance(data, NotYetLoadedTensor):
            return builder.parameter(data, requires_grad)
        return self._parameter(TensorRecipe(builder.parameter, (data, requires_grad)), data, requires_grad)

    def _parameter(self, recipe: TensorRecipe, data: NotYetLoadedTensor, requires_grad: bool) -> Any:
        is_dense = data._is_dense
        with _torch.without_torch_function():  # the placeholder itself knows them
            geometry = (data.stride(), data.storage_offset()) if is_dense else ()
            described = RebuildFacts(data.shape, data.dtype, requires_grad, *geometry)
            location = str(data.device)
        made = self._made(recipe, described, location)
        set_own(made, "_is_parameter", True)
        return made

    def set_attributes(self, target: Any, state: Any) -> None:
        """Set attributes of a parameter or an ``OrderedDict``."""
        if isinstance(target, NotYetLoadedTensor):
            target._recipe[1].attributes.append(state)
        else:
            builder.set_attributes(target, state)

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``function(*arguments)``, or the placeholder of the tensor that it makes."""
        callee = rebuild.callee(function)
        described = describe(callee, arguments)
        if described is not None:
            self._charged()
            return self._made(TensorRecipe(callee, arguments), described, "cpu")
        return self.made_at_once(callee, arguments)

    def create(self, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``cls.__new__(cls, *arguments)``."""
        return builder.create(cls, arguments if only_keeps(cls) else loaded(arguments))

    def set_state(self, target: Any, state: Any) -> None:
        """Set the state of an object of one of the user's classes."""
        builder.set_state(target, plain_state(state))

    def _charged(self) -> None:
        if self._charge is not None:
            self._charge()

    def later(self, function: Callable[..., Any], path: str) -> Callable[..., Any]:
        """Return a function that makes placeholders, for a rebuild function of torch; other functions as they are.

        For pickle's own unpickler, which calls the functions that it finds.
        """
        checked = rebuild.SAFE.get(path)
        if checked not in _TORCHS:
            return function

        def rebuilt(*given: Any) -> Any:
            # A function that another function calls must not convert its result, which is not complete yet.
            arguments: tuple[Any, ...] = tuple(
                getattr(each, "rebuilds", each) if isinstance(each, FunctionType) else each for each in given
            )
            if path.startswith("torch._utils._rebuild_parameter"):
                # torch's own function sets any state, also attributes that untrusted files may not set, such as `data`.
                data, requires_grad = arguments[:2]
                if isinstance(data, NotYetLoadedTensor):
                    return self._parameter(TensorRecipe(function, arguments), data, requires_grad)
                return self.made_at_once(function, arguments)
            described = describe(checked, given)
            if described is None:
                return self.made_at_once(function, arguments)
            return self._made(TensorRecipe(function, arguments), described, "cpu")

        rebuilt.checked, rebuilt.rebuilds = checked, function  # type: ignore[attr-defined]
        return rebuilt

    def made_at_once(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function now, and convert what it returns to the dtype and device of the options.

        The tensor's class converts it, because the tensor may consist of tensors that keep their dtypes, such as a
        scaled float8.
        """
        if self.source.options.converts and (given := as_saved(arguments)) is not arguments:
            made = function(*given)
            if isinstance(made, torch.Tensor):
                return self.source.as_wanted(made)
        made = function(*loaded(arguments))
        return self.source.as_wanted(made) if isinstance(made, torch.Tensor) else made

    def _made(self, recipe: Any, described: RebuildFacts, location: str) -> Any:
        size, dtype, requires_grad, stride, offset = described
        dtype, device = self.source.options.converted(dtype, location)
        if stride is not None and dtype != described.dtype and device.type != "meta":
            as_saved = torch.empty_strided(size, stride, dtype=described.dtype, device="meta")
            stride, offset = as_saved.to(dtype).stride(), 0
        made: torch.Tensor
        if device.type == "cpu":
            strides = torch.empty(size, device="meta").stride() if stride is None else stride
            made = _C.placeholder(NotYetLoadedTensor, dtype, offset, size, strides, requires_grad)
        else:
            made = _torch.wrapper_subclass(NotYetLoadedTensor, size, stride, dtype, device, requires_grad)
        set_own(made, "_recipe", (self.source, recipe))
        set_own(made, "_is_dense", stride is not None)
        return made


class Read(Deferred):
    """Reads dense tensors instead of making placeholders. A mapped tensor takes no memory of its own."""

    def __init__(self, source: Any, charge: Callable[[], None] | None = None) -> None:
        super().__init__(source, charge)
        self.converts = True

    def placeholder(self, index: int, *_: Any) -> Any:
        """Return the tensor."""
        self._charged()
        return self.source.load(index)


def loaded(value: Any) -> Any:
    """Return a value with real tensors in it, for functions that may be in C++ and keep their arguments."""
    return replaced(value, NotYetLoadedTensor, handed_out)


def as_saved(value: Any) -> Any:
    """Return a value with real tensors in it, with the dtypes and on the devices of the file."""
    return replaced(
        value, NotYetLoadedTensor, lambda each: each._recipe[0].load(each._recipe[1], as_saved=True)
    )


def only_keeps(cls: Any) -> bool:
    """Return whether a class is a tuple or named tuple, whose constructor only keeps its arguments."""
    makers = [each for each in getattr(cls, "__mro__", ()) if "__new__" in vars(each)]
    return makers[:1] == [tuple] or (makers[1:2] == [tuple] and hasattr(makers[0], "_fields"))


def plain_state(state: Any) -> Any:
    """Return an object's state, with real tensors in it unless it is a dict of attributes."""
    return state if type(state) is dict else loaded(state)


# --------------------------------------------------------------------------------- rebuild functions


def describe(function: Any, arguments: tuple[Any, ...]) -> RebuildFacts | None:
    """Return the facts about a tensor that its rebuild function's arguments tell; None if only the tensor tells them.

    Missing or contradictory arguments are not checked here: the function raises when it is called.
    """
    try:
        described_by = _DESCRIBED.get(getattr(function, "checked", rebuild.checked_version(function)))
        if described_by is None:
            return None
        described = described_by(*arguments)
        if described:  # torch warns when it makes a tensor of a quantized dtype
            dtype = torch.int64 if described.dtype in rebuild.QUANTIZED else described.dtype
            if described.stride is None:
                torch.empty(described.size, dtype=dtype, device="meta")
            else:
                torch.empty_strided(described.size, described.stride, dtype=dtype, device="meta")
            shape = (*described.size, *(described.stride or ()))
            is_plain = are_integers(shape) and type(described.requires_grad) is bool
            if not (is_plain and 0 <= operator.index(described.offset) < 1 << 63):
                return None
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
        return None
    return described


def _dense(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, *_: Any
) -> RebuildFacts:
    return RebuildFacts(size, storage.dtype, requires_grad, stride, offset)


def _dense_v3(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, *_: Any
) -> RebuildFacts:
    return RebuildFacts(size, dtype, requires_grad, stride, offset)


def _sparse(layout: Any, data: Any) -> RebuildFacts:
    at = 1 if layout is torch.sparse_coo else 2
    return RebuildFacts(data[at + 1], data[at].dtype, data[at].requires_grad)


def _quantized(
    storage: Any, offset: Any, size: Any, stride: Any, quantizer: Any, requires_grad: Any, *_: Any
) -> RebuildFacts:
    return RebuildFacts(size, storage.dtype, requires_grad)


def _of_a_type(function: Any, cls: Any, arguments: Any, state: Any) -> RebuildFacts | None:
    inner = describe(function, arguments)
    return inner and inner._replace(stride=None)


_TORCHS = frozenset(rebuild.SAFE.values())
_DESCRIBED: dict[Any, Callable[..., RebuildFacts | None]] = {
    rebuild.SAFE["torch._utils._rebuild_tensor"]: _dense,
    rebuild.SAFE["torch._utils._rebuild_tensor_v2"]: _dense,
    rebuild.SAFE["torch._utils._rebuild_tensor_v3"]: _dense_v3,
    rebuild.SAFE["torch._utils._rebuild_sparse_tensor"]: _sparse,
    rebuild.SAFE["torch._utils._rebuild_qtensor"]: _quantized,
    rebuild.SAFE["torch._tensor._rebuild_from_type_v2"]: _of_a_type,
}
