"""Runs a program in this process as ``python SCRIPT`` or ``python -m MODULE`` would, with ``torch.load`` patched.

``runpy.run_path`` would take ``__main__`` away when the program's last line has run. That is before ``atexit``
functions look for their globals, and pickles for their classes.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

import zerocopy
from zerocopy import environment
from zerocopy.launch import ending
from zerocopy.process import descendants, import_hook, log_level

_OWN = os.path.join(os.path.dirname(__file__), "")


def run(start: Callable[[], object]) -> None:
    """Run a prepared program to its end. Its exceptions reach the interpreter without frames of this package."""
    try:
        start()
        ending.note_exit_code(None)
    except SystemExit as error:
        ending.note_exit_code(error.code)
        raise
    except BaseException as error:
        hide_own_frames(error)
        raise


def prepared(program: str, arguments: list[str], is_module: bool) -> Callable[[], object]:
    """Set the process up as the program expects it, and return the function that runs the program."""
    main = ModuleType("__main__")
    if "__annotations__" in vars(sys.modules["__main__"]):  # until Python 3.13, the interpreter makes one
        vars(main)["__annotations__"] = {}
    vars(main)["__builtins__"] = builtins
    # The interpreter calls this function for -m, folders and zip files. It runs them in the present __main__.
    run_module = runpy._run_module_as_main  # type: ignore[attr-defined]

    if is_module:
        sys.argv = ["-m", *arguments]  # until the module is found
        _lead_path(Path.cwd())
        start = functools.partial(run_module, program)
    elif program == "-":
        sys.argv = [program, *arguments]
        _lead_path("")
        start = functools.partial(_run_input, main)
    elif pkgutil.get_importer(program) is not None:
        sys.argv = [program, *arguments]
        _lead_path(Path.cwd() / program, even_if_safe=True)
        start = functools.partial(run_module, "__main__", alter_argv=False)
    else:
        try:
            file = program if program.startswith("/") else f"{os.getcwd()}/{program}"
            folder = os.path.dirname(os.path.realpath(file))
        except FileNotFoundError:  # the current folder is gone
            file, folder = program, os.path.dirname(program)
        start = functools.partial(_run_script, main, file, Path(file).read_bytes())
        sys.argv = [program, *arguments]
        _lead_path(folder)

    # `__mp_main__` is the name in pickles from spawned processes. multiprocessing set it to the old `__main__` when it
    # was imported.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return start


def _lead_path(entry: str | Path, *, even_if_safe: bool = False) -> None:
    """Set the first entry of ``sys.path``, in place of this command's own folder."""
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
    _execute(code, main, file, loader)


def _run_input(main: ModuleType) -> None:
    """Run the text on standard input, all of it, as Python does for "-"."""
    file = "<stdin>"
    _execute(compile(sys.stdin.buffer.read(), file, "exec", dont_inherit=True), main, file, BuiltinImporter)


def _execute(code: CodeType, main: ModuleType, file: str, loader: Any) -> None:
    vars(main).update(__file__=file, __cached__=None, __loader__=loader)
    try:
        exec(code, vars(main))
    finally:
        _flush()


def _flush() -> None:
    """Flush the standard streams, as the interpreter does when a script has run, and before it waits for threads."""
    for name in ("stderr", "stdout"):
        with contextlib.suppress(Exception):
            getattr(sys, name).flush()


def hide_own_frames(error: BaseException) -> None:
    """Remove this package's frames from a traceback, so that it begins in the program if it is printed.

    The exception still propagates, because the interpreter decides how the process ends, for example after an
    interrupt.
    """
    hook = getattr(sys, "excepthook", sys.__excepthook__)  # a program may delete it
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN):
        traceback = traceback.tb_next

    def excepthook(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook  # so that this closure does not keep the program's frames alive
        hook(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = excepthook


def patch_this_process(share: bool, session: tuple[int, str] | None) -> None:
    """Patch here, and in the Python processes that the program starts. Calling it again changes nothing.

    A forked process inherits the patch. Any other Python process is patched when it starts, by
    ``children/sitecustomize.py``.

    Parameters
    ----------
    share : bool
        Whether loading functions return kept results.
    session : Session or None
        The session in which those processes start warm; None if they do not.
    """
    if environment.is_disabled():
        return
    log_level.configure()  # a program that starts warm has another environment than its fork server
    descendants.reach(share, session)
    patch_loading(share)


def _patch_torch(module: ModuleType) -> None:
    # A program may have a module of its own that is called torch.
    if hasattr(module, "__path__") and hasattr(module, "_C"):
        zerocopy.patch()


def patch_loading(share: bool) -> None:
    """Patch this process.

    A fork server calls this before it forks. Finding all references touches every module, and a forked process that did
    so would copy their memory.
    """
    import_hook.when_imported("torch", _patch_torch)
    if share:  # on top of the other patch: zerocopy.load loads the files for which share has no result
        importlib.import_module("zerocopy.share.patches.patch_all").patch_all()
