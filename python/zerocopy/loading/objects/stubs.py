"""Stubs: the data of objects whose classes are on no allow-list, without their code.

The native builder gets a :class:`StubBuilder` instead of the module ``builder``. The two differ only for objects of
unknown classes, and for calls with such an object among the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zerocopy.display import shown
from zerocopy.loading.objects import allowlist, builder, rebuild
from zerocopy.loading.objects.global_names import Name

# The number of arguments that are examined. Rebuild functions have fewer.
_MANY = 64


@dataclass(frozen=True)
class UnknownGlobal:
    r"""A class or function that a file names and that is on no allow-list. It was not imported.

    Attributes
    ----------
    module, name : str
        As the file spells them. Bytes that are not UTF-8 appear as ``\x``.

    Examples
    --------
    >>> import argparse, io, torch, zerocopy
    >>> file = io.BytesIO()
    >>> torch.save(argparse.Namespace(lr=0.1), file)
    >>> unknown = zerocopy.load(file.getvalue(), unknown="stub").callable
    >>> unknown.module, unknown.name
    ('argparse', 'Namespace')
    """

    module: str
    name: str

    def __repr__(self) -> str:
        return f"<unknown global {shown(f'{self.module}.{self.name}', None)}>"


@dataclass(eq=False, repr=False)
class Stub:
    """The content of an object whose class is not allowed.

    Attributes
    ----------
    callable : UnknownGlobal or object
        The class or function that would have made the object. If it is known and only its arguments are unknown,
        this is the class or function itself, else an ``UnknownGlobal``.
    arguments : tuple
        The arguments of the call.
    state : object
        The object's attributes, as ``__setstate__`` would have got them; None if there are none. Of a module:
        a dict with ``_parameters``, ``_buffers`` and ``_modules``.
    items : list
        Items that the file appends to the object.
    entries : list of (key, value)
        Items that the file sets by key.

    Examples
    --------
    >>> import io, sys, torch, types, zerocopy
    >>> file = io.BytesIO()
    >>> torch.save(types.SimpleNamespace(step=3, weight=torch.ones(2)), file)
    >>> stub = zerocopy.load(file.getvalue(), unknown="stub")
    >>> stub
    <stub of types.SimpleNamespace>
    >>> stub.state
    {'step': 3, 'weight': tensor([1., 1.])}
    """

    callable: Any
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: list[tuple[Any, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        if isinstance(self.callable, UnknownGlobal):
            return repr(self.callable).replace("unknown global", "stub of", 1)
        return f"<stub of {getattr(self.callable, '__qualname__', None) or repr(self.callable)}>"


def allow(names: Iterable[Name]) -> dict[Name, Any]:
    """Return the object for each global of a file, known or not."""
    found, unknown = allowlist.look_up(names)
    for name in unknown:
        module, attribute = (part.decode("utf-8", "backslashreplace") for part in name)
        checked = rebuild.SAFE.get(f"{module}.{attribute}")  # torch may lack the function
        found[name] = checked or UnknownGlobal(module, attribute)
    return found


class StubBuilder:
    """Makes stubs of objects that cannot be made, and leaves all others to another builder.

    Parameters
    ----------
    inner : object
        The module :mod:`zerocopy.loading.objects.builder`, or what replaces it.
    """

    makes_stubs = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``function(*arguments)`` where both are known (REDUCE)."""
        if rebuild.checked_version(function) is rebuild.rebuild_from_type_v2 and len(arguments) == 4:
            make, cls, its_arguments, state = arguments
            if isinstance(cls, UnknownGlobal) and isinstance(its_arguments, tuple):  # a subclass of Tensor
                return Stub(cls, (self.call(make, its_arguments),), state)
        if hold_unknown((function, *arguments)) or not rebuild.may_be_called(function):
            return Stub(function, arguments)
        return self._inner.call(function, arguments)

    def create(self, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``cls.__new__(cls, *arguments)`` where both are known (NEWOBJ)."""
        if hold_unknown((cls, *arguments)) or not rebuild.may_be_called(cls):
            return Stub(cls, arguments)
        return self._inner.create(cls, arguments)

    def create_with_keywords(self, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """Return a stub of an object that has keyword arguments (NEWOBJ_EX)."""
        return Stub(cls, arguments)

    def parameter(self, data: Any, requires_grad: bool) -> Any:
        """Return ``torch.nn.Parameter(data, requires_grad)`` if the data are known."""
        if is_unknown(data):
            return Stub(rebuild.rebuild_parameter, (data, requires_grad))
        return self._inner.parameter(data, requires_grad)

    def set_state(self, target: Any, state: Any) -> None:
        """Set the state of an object (BUILD)."""
        if isinstance(target, Stub):
            target.state = state
        else:
            self._inner.set_state(target, state)

    def set_attributes(self, target: Any, state: Any) -> None:
        """Set attributes of a parameter or an ``OrderedDict``."""
        if isinstance(target, Stub):
            target.state = state
            return
        if isinstance(state, dict):
            # A file may not set a name like ``__orig_class__`` to other values. An unknown value is harmless there,
            # because nothing can call or follow a stub.
            harmless = {name: value for name, value in state.items() if _is_harmless(target, name, value)}
            vars(target).update(harmless)
            state = {name: value for name, value in state.items() if name not in harmless}
        self._inner.set_attributes(target, state)

    def append(self, target: Any, item: Any) -> None:
        """Append to an object (APPEND)."""
        if isinstance(target, Stub):
            target.items.append(item)
        else:
            self._inner.append(target, item)

    def set_item(self, target: Any, key: Any, value: Any) -> None:
        """Set an item of an object (SETITEM)."""
        if isinstance(target, Stub):
            target.entries.append((key, value))
        else:
            self._inner.set_item(target, key, value)


def _is_harmless(target: Any, name: Any, value: Any) -> bool:
    """Return whether an attribute changes nothing of what an object does."""
    return is_unknown(value) and isinstance(name, str) and not hasattr(type(target), name)


#: Makes real tensors.
BUILDER = StubBuilder(builder)


def is_unknown(value: Any) -> bool:
    """Return whether a value stands for something that is on no allow-list."""
    return isinstance(value, (Stub, UnknownGlobal))


def hold_unknown(arguments: tuple[Any, ...]) -> bool:
    """Return whether something unknown is among the arguments, or in a tuple among them."""
    parts = [argument if isinstance(argument, tuple) else (argument,) for argument in arguments[:_MANY]]
    return any(is_unknown(part) for some in parts for part in some[:_MANY])
