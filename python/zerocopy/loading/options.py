"""The options of a load, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zerocopy.loading import backends

_OF_LAZY_LOAD = {
    **dict.fromkeys(("dtype", "keys", "prefix", "predicate"), "zerocopy.lazy_load takes it"),
    "device": "use map_location, or zerocopy.lazy_load, which takes it",
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of a load that do not contradict each other: :func:`checked` makes them of a caller's arguments.

    Attributes
    ----------
    map_location, pickle_module, weights_only, mode, unknown, strict
        As for ``zerocopy.load``.
    backend : {"auto", "mmap", "pread", "direct"}
        As the argument, `mmap` or the environment says.
    pickle_args : dict
        For the unpickler; it has an ``encoding``.
    by_name : bool
        Whether to return the leaves by dotted name, as an index of shards names them.
    """

    map_location: Any = None
    pickle_module: Any = None
    weights_only: bool = True
    backend: str = "auto"
    mode: str = "c"
    unknown: str = "refuse"
    pickle_args: dict[str, Any] = field(default_factory=lambda: {"encoding": "utf-8"})
    strict: bool = True
    by_name: bool = False

    @property
    def encoding(self) -> str:
        """The encoding of Python 2's strings."""
        return str(self.pickle_args["encoding"])


def checked(
    map_location: Any = None,
    pickle_module: Any = None,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    backend: str = "auto",
    mode: str = "c",
    unknown: str = "refuse",
    pickle_args: dict[str, Any] | None = None,
    strict: bool = True,
) -> LoadOptions:
    """Return the options of a load. Raises TypeError, ValueError or RuntimeError where they contradict each other."""
    weights_only = is_weights_only(weights_only, unknown)
    backend = backends.backend_of(backend, mmap)
    if weights_only and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    if pickle_args:
        _require_known(pickle_args, weights_only)
    pickle_args = {"encoding": "utf-8", **(pickle_args or {})}
    return LoadOptions(map_location, pickle_module, weights_only, backend, mode, unknown, pickle_args, strict)


def _require_known(pickle_args: dict[str, Any], weights_only: bool) -> None:
    if strangers := pickle_args.keys() & _OF_LAZY_LOAD.keys():
        name = min(strangers)
        raise TypeError(f"load() got an unexpected keyword argument {name!r}: {_OF_LAZY_LOAD[name]}")
    if weights_only and (strangers := pickle_args.keys() - {"encoding"}):
        raise TypeError(f"load() got an unexpected keyword argument {min(strangers)!r}, under weights_only")
    if not isinstance(pickle_args.get("encoding", ""), str):
        raise TypeError(f"expected encoding to be a str, got {type(pickle_args['encoding']).__name__}")


def is_weights_only(weights_only: bool | None, unknown: str) -> bool:
    """Return whether nothing of the file may run. None is the default, as for torch, and means True.

    Raises ValueError unless `unknown` is "refuse" or "stub", and agrees with `weights_only`.
    """
    if unknown not in ("refuse", "stub"):
        raise ValueError(f"unknown must be 'refuse' or 'stub', not {unknown!r}")
    is_safe = weights_only is None or bool(weights_only)
    if unknown == "stub" and not is_safe:
        raise ValueError("unknown='stub' runs nothing of the file: it goes with weights_only=True")
    return is_safe
