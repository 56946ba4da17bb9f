"""Imports the modules of a program's last run, and finds those that a fork server must not import."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from zerocopy.launch import circumstances, recording, variables
from zerocopy.launch.queries import Queries, state_of

#: These modules prepare the terminal, or patch other modules, when they are imported.
_NEVER = frozenset(
    {"antigravity", "curses", "readline", "rlcompleter", "this", "idlelib", "turtle", "tkinter"}
)

#: Whether torch's seed, or the first word of NumPy's state, was drawn at import. Seeds chosen by people are small.
_IS_DRAWN = {"torch": lambda seed: seed >= 1 << 32, "numpy": lambda word: word == 1 << 31}


class HasEffects(Exception):
    """Importing a module has an effect that a fork cannot repeat."""

    def __init__(self, module: str, effect: str) -> None:
        super().__init__(f"{module} {effect} when it is imported")
        self.module = module


class _WatchedArguments(list[str]):
    """``sys.argv`` that records whether it is read."""

    is_read = False

    def _noted(self, name: str, *arguments: Any) -> Any:
        self.is_read = True
        return getattr(super(), name)(*arguments)

    __contains__ = functools.partialmethod(_noted, "__contains__")
    __eq__ = functools.partialmethod(_noted, "__eq__")
    __getitem__ = functools.partialmethod(_noted, "__getitem__")
    __iter__ = functools.partialmethod(_noted, "__iter__")
    __len__ = functools.partialmethod(_noted, "__len__")
    __repr__ = functools.partialmethod(_noted, "__repr__")
    __hash__ = None


@contextlib.contextmanager
def watched(words: list[str]) -> Iterator[set[str]]:
    """Record the environment variables that Python code reads within a block, and whether it reads ``sys.argv``.

    Parameters
    ----------
    words : list of str
        ``sys.argv`` within the block.
    """
    plain = sys.argv
    arguments = sys.argv = _WatchedArguments(words)
    alone = sys.getrefcount(arguments)
    try:
        with variables.reads_noted() as seen:
            yield seen
    finally:
        # A module may also have stored the list, to read it later.
        if arguments.is_read or sys.getrefcount(arguments) > alone:
            seen.add(circumstances.ARGUMENTS)
        sys.argv = plain


def import_all(modules: list[str], foreign: list[str], captured: int) -> None:
    """Import modules in their order. ``HasEffects`` for one that a fork server must not import.

    Parameters
    ----------
    modules, foreign : list of str
        The modules, and those that a finder of the program has to load.
    captured : int
        The descriptor of the file that stdout and stderr lead to.
    """
    descriptors, states = _descriptors(), _random_states()
    for name in modules:
        if name in sys.modules or name.partition(".")[0] in _NEVER:
            continue
        package, new = (
            name.partition(".")[0],
            next(part for part in _lineage(name) if part not in sys.modules),
        )
        with contextlib.suppress(Exception, SystemExit):  # the program may catch the same exception
            importlib.import_module(name)
        if _threads() > 1:
            _stop_pools()
        _require_no_effects(package, captured, descriptors)
        if taken := next(filter(_is_loaded_plainly, foreign), None):
            raise HasEffects(new, f"imports {taken}, which the program loads in a way of its own,")
        before, states = states, _random_states()
        if not _are_as_before(before, states):
            raise HasEffects(package, "seeds or draws random numbers")
    if "torch" in sys.modules:
        importlib.import_module("zerocopy._native")
        zerocopy = importlib.import_module("zerocopy")
        for name in zerocopy.__all__:
            getattr(zerocopy, name)
        sys.stderr.flush()
        os.ftruncate(captured, 0)  # its own log lines
    ctypes.CDLL(None).fflush(None)
    _stop_pools()
    _require_no_effects("zerocopy", captured, descriptors)


def _lineage(name: str) -> Iterator[str]:
    """Yield the names of the packages around a module, the outermost first, and its own."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def _is_loaded_plainly(name: str) -> bool:
    return name in sys.modules and not recording.is_foreign(sys.modules[name])


def settle() -> None:
    """Exclude all objects from garbage collection, so that a child does not copy their pages by looking at them."""
    gc.collect()
    gc.freeze()


def has_other_threads() -> bool:
    """Return whether a thread besides the caller's runs in this process."""
    return _threads() > 1


def _require_no_effects(name: str, captured: int, descriptors: set[str]) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.fstat(captured).st_size:
        raise HasEffects(name, "prints")
    if _threads() > 1:
        raise HasEffects(name, "starts a thread")
    if not _descriptors() <= descriptors:
        raise HasEffects(name, "keeps a file open")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        raise HasEffects(name, "keeps a process")


def _random_states() -> dict[str, tuple[Any, ...]]:
    """Return the states of the random generators. Each program gets fresh ones."""
    found: dict[str, tuple[Any, ...]] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        _, key, position, *_ = numpy.get_state()
        found["numpy"] = int(key[0]), position, key.tobytes()
    if torch is not None:
        found["torch"] = (torch.default_generator.initial_seed(),)
    return found


def _are_as_before(before: dict[str, tuple[Any, ...]], states: dict[str, tuple[Any, ...]]) -> bool:
    """Return whether no generator, old or new, was seeded or drawn from."""
    return all(
        state == before[kind] if kind in before else _IS_DRAWN[kind](state[0])
        for kind, state in states.items()
    )


def _stop_pools() -> None:
    """Stop OpenBLAS's threads by a fork: OpenBLAS ends them before each fork, and starts them again when needed."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _descriptors() -> set[str]:
    """Return the open descriptors, among them the one of this listing, which gets the lowest free number."""
    return set(os.listdir("/proc/self/fd"))


class Files:
    """The state that files of this process's modules, and paths that imports read or queried, had at that time.

    Parameters
    ----------
    asked : Queries
        The queries that imports made.
    """

    def __init__(self, asked: Queries) -> None:
        names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            names.update(line.split(maxsplit=5)[5].rstrip("\n") for line in maps if ".so" in line)
        modules = {name for name in names if isinstance(name, str) and name.startswith("/")}
        # A folder changes when a package or module is installed there, and an import may have looked for that one.
        # The folders of other files that were read are the program's own, and change while it works.
        paths = modules | asked.read | asked.listed | {os.path.dirname(path) for path in modules}
        paths.update(path for path in sys.path if os.path.isdir(path))
        is_listed = dict.fromkeys(asked.looked_at, False) | dict.fromkeys(paths, True)
        self._known = {path: (listed, state_of(path, listed)) for path, listed in is_listed.items()}

    def changed(self) -> str:
        """Return a file that has changed; empty if there is none."""
        known = self._known.items()
        return next((path for path, (listed, state) in known if state_of(path, listed) != state), "")
