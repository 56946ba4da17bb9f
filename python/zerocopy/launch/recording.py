"""Notes at a program's end which modules it has imported, and starts a fork server that has them for the next run."""

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

from zerocopy.launch import circumstances, records
from zerocopy.launch.request import Request, doubt_of_record
from zerocopy.process import descendants

_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from zerocopy.launch.server import main; main()"
_TITLE = "zerocopy-warm"


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
    """

    def __init__(
        self,
        request: Request,
        path: list[str],
        preloaded: records.Record | None = None,
        there_before: Sequence[str] = (),
    ) -> None:
        self._request, self._path, self._preloaded = request, path, preloaded
        self._there_before = there_before
        self._environment = dict(os.environ)
        self._circumstances = self._describe(records.Record(request.identity))
        self._identity, self._pid = request.identity, os.getpid()
        self._folder = os.getcwd()  # noqa: PTH109
        # The first to be registered is the last to be called.
        atexit.register(self._finish)

    def _describe(self, record: records.Record) -> str:
        return circumstances.describe(
            self._path,
            self._environment,
            record.variables,
            record.modules,
            self._request.words,
            self._request.share,
        )

    def _finish(self) -> None:
        """Write the record, and start a fork server if there is none for it. A program's end never fails for this."""
        if os.getpid() != self._pid:  # a child that the program forked
            return
        with contextlib.suppress(Exception), contextlib.chdir(self._folder):
            before = records.load(self._identity) or records.Record(self._identity)
            record = self._record(before)
            doubt = doubt_of_record(record)
            if self._preloaded is not None and record.modules == before.modules and not doubt:
                return  # the fork server that this process came from will do
            records.save(record)
            # Only a fork server can tell that an import has set a variable. It is asked once for each variable.
            known = [name for name in record.set_by_program if name in before.set_by_program]
            if doubt_of_record(record._replace(set_by_program=known)):
                return
            if self._describe(records.Record(self._identity)) != self._circumstances:
                return
            start_server(record, self._path, self._environment, self._request)

    def _record(self, before: records.Record) -> records.Record:
        """Return the record after this run. Modules that this run did not need stay: other arguments may need them."""
        found = [*before.modules, *_modules(self._there_before, before.modules)]
        changed = {
            name
            for name in {*os.environ, *self._environment} - {descendants.VARIABLE, descendants.PATH}
            if os.environ.get(name) != self._environment.get(name)
        }
        by_imports = {name for name, value in before.set_by_imports.items() if os.environ.get(name) == value}
        return before._replace(modules=found, set_by_program=sorted(changed - by_imports), doubt="")


def _modules(there_before: Sequence[str], recorded: Sequence[str]) -> list[str]:
    """Return further modules of the standard library and of site-packages that are imported here, in order.

    Those after the last that was there before: to look at a name copies the page of it from the fork server.
    """
    last = there_before[-1:]
    names = list(itertools.takewhile(lambda name: name not in last, reversed(sys.modules)))
    if not names:
        return []
    known = {*there_before, *recorded}
    further = [(name, sys.modules[name]) for name in reversed(names) if name not in known]
    folders = library_folders()
    own = (f"{os.path.dirname(os.path.dirname(__file__))}/",)  # noqa: PTH120
    found = []
    for name, module in further:
        spec = getattr(module, "__spec__", None)
        file = getattr(module, "__file__", None)
        if (
            name.startswith("__")
            or spec is None
            or getattr(spec, "name", None) != name
            or not isinstance(file, str)
        ):
            continue
        if os.path.realpath(file).startswith(folders) and not file.startswith(own):
            found.append(name)
    return found


def library_folders() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages, each with a slash at its end."""
    paths = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    paths.update(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    return tuple(os.path.join(os.path.realpath(path), "") for path in paths)  # noqa: PTH118


def start_server(
    record: records.Record, path: list[str], environment: dict[str, str], request: Request
) -> None:
    """Start a fork server in this session, in a process group of its own, with none of this process's files."""
    import subprocess

    payload = json.dumps(
        {
            "record": record._asdict(),
            "path": path,
            "words": request.words,
            "share": request.share,
            "environment": environment,
        }
    ).encode()
    descriptor = os.memfd_create("zerocopy-warm", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, payload)
        os.lseek(descriptor, 0, os.SEEK_SET)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        for name, value in sys._xoptions.items():  # of which that has only some
            flags += ["-X", name if value is True else f"{name}={value}"]
        if circumstances.is_unbuffered():
            flags.append("-u")
        os.posix_spawn(
            sys.executable,
            [sys.executable, *flags, "-c", _BOOT, _TITLE, *path],
            circumstances.as_given(environment),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, descriptor, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    finally:
        os.close(descriptor)
