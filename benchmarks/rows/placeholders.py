"""State dicts of placeholders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module, needs_open


def _lazy(path: str) -> Any:
    import zerocopy

    return zerocopy.lazy_load(path)


def _lazy_fabric(path: str) -> Any:
    from lightning_fabric.utilities.load import _lazy_load

    return _lazy_load(path)


def _filled_by(method: str) -> Callable[[Any], Any]:
    """Return a function that replaces, in place, the placeholders by tensors in a state dict of
    placeholders."""

    def fill(state: Any) -> Any:
        for name in state:
            state[name] = getattr(state[name], method)()
        return state

    return fill


LOADERS: dict[str, Loader] = {
    "zerocopy-lazy": Loader("zerocopy.lazy_load", _lazy, needs_open, real=_filled_by("materialize")),
    "fabric-lazy": Loader(
        "Fabric's _lazy_load",
        _lazy_fabric,
        needs_module("lightning_fabric"),
        real=_filled_by("_load_tensor"),
    ),
}

CASES: tuple[Case, ...] = (
    TimeCase(
        "moe/lazy",
        Side("zerocopy-lazy", "moe.pt"),
        Side("fabric-lazy", "moe.pt"),
        columns=("ready",),
    ),
    *(
        TimeCase(
            f"{stem}/lazy/load",
            Side("zerocopy-lazy", f"{stem}.pt"),
            Side("zerocopy", f"{stem}.pt"),
            columns=("ready", "cold"),
        )
        for stem in ("bert", "moe")
    ),
)
