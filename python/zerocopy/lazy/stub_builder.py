"""Builds placeholders for tensors, and stubs for objects whose globals are on no allow-list (``unknown="stub"``)."""

from __future__ import annotations

from typing import Any

from zerocopy.lazy.placeholder_builder import Deferred
from zerocopy.loading.objects import rebuild, stubs
from zerocopy.loading.objects.stubs import Stub, UnknownGlobal


class StubbingDeferred(Deferred):
    """As its base class, with a :class:`zerocopy.Stub` in place of each object that cannot be made."""

    def __getattr__(self, name: str) -> Any:
        return getattr(stubs, name)

    def parameter(self, data: Any, requires_grad: bool) -> Any:
        """Return the placeholder of a parameter, or a stub where its data are unknown."""
        if stubs.is_unknown(data):
            return stubs.parameter(data, requires_grad)
        return super().parameter(data, requires_grad)

    def set_attributes(self, target: Any, state: Any) -> None:
        """Give a parameter, an ``OrderedDict`` or a stub attributes."""
        if isinstance(target, Stub):
            target.state = state
        else:
            super().set_attributes(target, state)

    def call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``function(*arguments)``, a placeholder, or a stub where one of them is unknown."""
        if function is rebuild.rebuild_from_type_v2 and len(arguments) == 4:
            make, cls, its_arguments, state = arguments
            if isinstance(cls, UnknownGlobal) and isinstance(its_arguments, tuple):  # a subclass of Tensor
                return Stub(cls, (self.call(make, its_arguments),), state)
        if stubs.is_unknown(function) or stubs.hold_unknown(arguments):
            return Stub(function, arguments)
        return super().call(function, arguments)

    def create(self, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """Return ``cls.__new__(cls, *arguments)``, or a stub where one of them is unknown."""
        if stubs.is_unknown(cls) or stubs.hold_unknown(arguments):
            return Stub(cls, arguments)
        return super().create(cls, arguments)

    def set_state(self, target: Any, state: Any) -> None:
        """Give an object its state."""
        if isinstance(target, Stub):
            target.state = state
        else:
            super().set_state(target, state)
