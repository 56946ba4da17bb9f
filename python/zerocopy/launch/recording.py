"""Records at a program's end which modules it imported, and starts a fork server with them for the next run."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import signal
import site
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader
from types import ModuleType

from zerocopy.launch import circumstances, records, variables
from zerocopy.launch.request import Request, checksum, doubt_of_record, importable_ahead
from zerocopy.process import descendants

_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from zerocopy.launch.server import main; main()"
_TITLE = "zerocopy-warm"
_LOADERS = (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader, type)  # a class loads frozen modules


class Recorder:
    """Records one run of a program, from its start to its end.

    Parameters
    ----------
    request : Request
        The program.
    path : list of str
        ``sys.path`` at the start, without the entry of this command's own folder.
    preloaded : Record or None
        The record whose modules were there before the program began.
    there_before : sequence of str
        The names of all modules of the fork server, in order. It needs some itself: the next one will have them too.
    only_with : str
        A module without which the program is not recorded; empty to record each.
    """

    def __init__(
        self,
        request: Request,
        path: list[str],
        preloaded: records.Record | None = None,
        there_before: Sequence[str] = (),
        only_with: str = "",
    ) -> None:
        self._request, self._path, self._preloaded = request, path, preloaded
        self._there_before, self._only_with = there_before, only_with
        self._environment = dict(os.environ)
        self._identity, self._pid = request.identity, os.getpid()
        self._folder, self._script = os.getcwd(), checksum(request)
        self._changes = variables.watch_changes(library_folders())
        # The function that is registered first is called last.
        atexit.register(self._finish)

    def _finish(self) -> None:
        """Write the record, and start a fork server if none has it. Errors here do not change how the program ends."""
        if os.getpid() != self._pid:  # a child that the program forked
            return
        if self._only_with not in ("", *sys.modules):
            return
        with contextlib.suppress(Exception), contextlib.chdir(self._folder):
            before = records.load(self._identity) or records.Record(self._identity)
            record = self._record(before)
            if self._preloaded is None or record != before:
                records.save(record)
            if doubt_of_record(record):
                return
            if self._preloaded is not None and importable_ahead(record) == importable_ahead(before):
                return  # the fork server that this process came from has all the imports
            start_server(record, self._path, self._environment, self._request)

    def _record(self, before: records.Record) -> records.Record:
        """Return the record after this run. It keeps modules that this run did not need, for other arguments."""
        modules, foreign = _modules(self._there_before)
        modules = list(dict.fromkeys([*before.modules, *modules]))
        changes = {name: dict(by) for name, by in before.changes.items()}
        is_read, unknown = circumstances.reader(before.variables), []
        for (name, module), there in self._changes().items():
            if self._preloaded is None:
                by, further = changes.setdefault(name, {}), sys.modules.keys() - there
                first = next((at for at, each in enumerate(modules) if each in further), len(modules))
                by[module] = min(first, by.get(module, first))
            elif module not in changes.get(name, {}) and is_read(name):
                unknown.append(name)
        return before._replace(
            modules=modules,
            foreign=sorted({*before.foreign, *foreign}),
            changes=changes,
            script=self._script,
            doubt=f"it changes {', '.join(unknown)}, in a plain run to see when" if unknown else "",
        )


def _modules(there_before: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the modules of the standard library and site-packages that were imported since, in order of import.

    They stand behind the last module that was loaded before. The search goes backwards to that one, because looking at
    a name copies its page from the fork server. The second list has the modules that the program's own finder loaded.
    """
    last, known = there_before[-1:], {*there_before}
    names = list(itertools.takewhile(lambda name: name not in last, reversed(sys.modules)))
    folders = library_folders()
    own = (f"{os.path.dirname(os.path.dirname(__file__))}/",)
    found: tuple[list[str], list[str]] = [], []
    for name in reversed(names):
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        if (
            name not in known
            and not name.startswith("__")
            and getattr(getattr(module, "__spec__", None), "name", None) == name
            and isinstance(file, str)
            and os.path.realpath(file).startswith(folders)
            and not file.startswith(own)
        ):
            found[is_foreign(module)].append(name)
    return found


def is_foreign(module: ModuleType) -> bool:
    """Return whether another loader than Python's own has loaded a module, for example pytest's."""
    return type(getattr(module.__spec__, "loader", None)) not in _LOADERS


def library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages, each with a slash at its end."""
    paths = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    paths.update(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)


def start_server(
    record: records.Record, path: list[str], environment: dict[str, str], request: Request
) -> None:
    """Start a fork server in a process group of its own, with none of this process's files.

    The fork server stays in this session. If the session is the program's own, the server gets its own too.
    """
    import subprocess

    payload = json.dumps(
        {
            "record": record._asdict(),
            "path": path,
            "request": request,
            "environment": descendants.unreached(environment),
        }
    ).encode()
    descriptor = os.memfd_create("zerocopy-warm", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, payload)
        os.lseek(descriptor, 0, os.SEEK_SET)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        for name, value in sys._xoptions.items():  # the function above returns only some of them
            flags += ["-X", name if value is True else f"{name}={value}"]
        if circumstances.is_unbuffered():
            flags.append("-u")
        os.posix_spawn(
            sys.executable,
            [sys.executable, *flags, "-c", _BOOT, _TITLE, *path],
            circumstances.as_given(descendants.unreached(environment)),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, descriptor, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            **({"setsid": True} if request.is_apart else {"setpgroup": 0}),
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.close(descriptor)
