"""``zerocopy run``: a program as Python itself runs it, except that ``torch.load`` is patched.

The program gets what ``python script.py`` or ``python -m module`` would give it: ``sys.argv``, the first entry of
``sys.path``, and a ``__main__`` that is its own until the process ends. ``runpy.run_path`` would take ``__main__``
away when the program's last line has run, which is before ``atexit`` functions look for their globals and pickles
for their classes.

One thing differs: torch is there before the program's first line, so what it reads on import (``OMP_NUM_THREADS``,
say) has to be in the environment already.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import importlib
import pkgutil
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from multiprocessing import spawn
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import zerocopy
from zerocopy import environment
from zerocopy.process import import_hook

DESCRIPTION = """
Runs an unchanged program as python would, with torch.load replaced by one that maps checkpoints instead of reading
them, as soon as the program imports torch. Processes that it starts by multiprocessing are patched too; other programs
that it starts are not. With --share whole models come from the model server, which loads each of them once on this
machine. ZEROCOPY_DISABLE=1 leaves torch.load as it is.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; all that follows the program is the program's."""
    parser.add_argument(
        "--share",
        action="store_true",
        help="models too come from the model server: from_pretrained, pipeline, torch.load and others",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    # One argument for both: between two, argparse would lose the first "--" of the program's own.
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs=argparse.PARSER,
        help="a script, or a folder or zip file with a __main__.py; then the program's own arguments",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the program to its end. What it raises goes on to the interpreter, which knows what to do with it."""
    program, *arguments = options.program[options.program[0] == "--" :]
    try:
        start = _prepared(program, arguments, options.module)
    except OSError as error:
        reason = f"can't open file {error.filename!r}: [Errno {error.errno}] {error.strerror}"
        parser.exit(2, f"{parser.prog}: {reason}\n")
    _patch_this_process(options.share)
    try:
        start()
    except SystemExit:
        raise
    except BaseException as error:
        _hide_own_frames(error)
        raise
    return 0


def _prepared(program: str, arguments: list[str], is_module: bool) -> Callable[[], object]:
    """Make the process look as the program expects it, and return what runs it."""
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    # What the interpreter itself calls for -m, folders and zip files; like it, it runs them in __main__ as it is.
    run_module = runpy._run_module_as_main  # type: ignore[attr-defined]

    if is_module:
        sys.argv = ["-m", *arguments]  # until the module is found
        _lead_path(Path.cwd())
        start = functools.partial(run_module, program)
    elif pkgutil.get_importer(program) is not None:
        sys.argv = [program, *arguments]
        _lead_path(Path.cwd() / program, even_if_safe=True)
        start = functools.partial(run_module, "__main__", alter_argv=False)
    else:
        file = Path.cwd() / program
        start = functools.partial(_run_script, main, str(file), file.read_bytes())
        sys.argv = [program, *arguments]
        _lead_path(file.resolve().parent)

    # The second name is that in pickles from spawned processes. multiprocessing set it when it was imported.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return start


def _lead_path(entry: Path, *, even_if_safe: bool = False) -> None:
    """Put an entry first on ``sys.path``, where Python has put this command's own folder."""
    if not sys.flags.safe_path:
        sys.path[0] = str(entry)
    elif even_if_safe:
        sys.path.insert(0, str(entry))


def _run_script(main: ModuleType, file: str, content: bytes) -> None:
    if file.endswith(".pyc"):
        loader: Any = SourcelessFileLoader("__main__", file)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", file)
        code = compile(content, file, "exec", dont_inherit=True)
    vars(main).update(__file__=file, __cached__=None, __loader__=loader)
    exec(code, vars(main))


def _hide_own_frames(error: BaseException) -> None:
    """Have the traceback begin in the program, if it comes to be printed.

    The exception itself goes on: how a process ends that was interrupted, say, is for the interpreter.
    """
    hook = sys.excepthook
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next

    def excepthook(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook  # nor does anything keep the program's frames alive when this is done
        hook(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = excepthook


_FORK_SERVER = "ignore"  # the name that multiprocessing.forkserver asks for the data of its server by


def _patch_this_process(share: bool) -> None:
    """Patch here, and in the processes that multiprocessing will start from here.

    A forked process is patched as it is. One that is spawned, or comes from a fork server, is told what to do by a
    dictionary; unpickling this entry of it patches before the program is imported again.
    """
    if environment.is_disabled():
        return
    import_hook.when_imported("torch", lambda _: zerocopy.patch())
    if share:  # over the other: what the server cannot give is loaded by zerocopy.load
        importlib.import_module("zerocopy.share.patches.patch_all").patch_all()
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        if name == _FORK_SERVER:
            # It would import the program before anything is patched there. Its children import the program again.
            data.pop("init_main_from_path", None)
        return {"zerocopy": _PatchWhenUnpickled(share), **data}

    spawn.get_preparation_data = get_preparation_data


class _PatchWhenUnpickled:
    def __init__(self, share: bool) -> None:
        self._share = share

    def __reduce__(self) -> tuple[Callable[[bool], None], tuple[bool]]:
        return _patch_this_process, (self._share,)
