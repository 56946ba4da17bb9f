"""A program as the command line names it, and the reasons not to start it warm."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import zlib
from typing import NamedTuple

from zerocopy import environment
from zerocopy.launch import circumstances
from zerocopy.launch.records import Record

# Ways in which a script may set an environment variable before it imports what reads the variable.
_ASSIGNMENT = re.compile(
    rb"""environ\s*\[\s*['"](\w+)['"]\s*\]\s*=(?!=)|(?:setdefault|putenv|unsetenv|pop)\(\s*['"](\w+)['"]"""
    rb"""|environ\.(update)\(|environ\s*(\|=)|(load_dotenv)"""
)
# These modules replace parts of modules that are imported later, or belong to a debugger.
_UNFIT = frozenset({"coverage", "debugpy", "eventlet", "gevent", "pydevd", "trio_debug"})
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)  # exec keeps them, fork does not

#: Spellings of ``-v``, and how many they count for.
VERBOSE = {"-v": 1, "-vv": 2, "--verbose": 1}


class Request(NamedTuple):
    """A program to run.

    Attributes
    ----------
    words : list of str
        The program and its arguments.
    is_module : bool
        Whether it is a module, as in ``python -m``.
    share : bool
        Whether kept results are taken.
    session : Session
        The session that its fork server lasts as long as.
    is_apart : bool
        Whether the program leads a session of its own, as ranks of torchrun do.
    verbosity : int
        How many times ``-v`` was given.
    """

    words: list[str]
    is_module: bool
    share: bool
    session: circumstances.Session
    is_apart: bool = False
    verbosity: int = 0

    @property
    def identity(self) -> str:
        """The name under which the program's record is stored."""
        program, here = self.words[0], os.getcwd()
        words = f"-m {program} in {here}" if self.is_module else os.path.normpath(os.path.join(here, program))
        return f"{sys.prefix}{circumstances.wanted_warnings()}: {words}"


def named(words: list[str], is_module: bool) -> list[str]:
    """Return the words with the full path of a command such as ``torchrun``, which is a Python script on the ``PATH``.

    A file of that name in the current folder comes first, as for ``python``.
    """
    program = words[0]
    if is_module or os.sep in program or os.path.lexists(program):
        return words
    import shutil  # only here: it takes milliseconds

    path = shutil.which(program)
    if path is None or not os.access(path, os.R_OK):
        return words
    with open(path, "rb") as file:
        start = file.readline(256)
    return [path, *words[1:]] if start.startswith(b"#!") and b"python" in start else words


def parse(words: list[str]) -> Request | None:
    """Return the program to start warm, from the words after ``run``; None for words that argparse must parse."""
    chosen: set[str] = set()
    verbosity = 0
    for number, word in enumerate(words):
        if word in ("--warm", "--share", "-m"):
            chosen.add(word)
            continue
        if word in VERBOSE:
            verbosity += VERBOSE[word]
            continue
        rest = words[number + (word == "--") :]
        if "--warm" not in chosen or not rest or (word != "--" and word.startswith("-")):
            return None
        is_module = "-m" in chosen
        session = circumstances.session()
        return Request(named(rest, is_module), is_module, "--share" in chosen, session, verbosity=verbosity)
    return None


def of_this_process(share: bool, session: circumstances.Session) -> Request | None:
    """Return the program of this Python process, which a warm program started; None for code (``-c``) and for input.

    Parameters
    ----------
    share : bool
        Whether kept results are taken.
    session : Session
        The session of the warm start.
    """
    program, *arguments = sys.argv or [""]
    if is_module := program == "-m":
        program = sys.orig_argv[-len(sys.argv)]
    is_apart = os.getsid(0) == os.getpid()
    if program in ("", "-", "-c", "zerocopy") or program.startswith("-m"):
        return None
    if not is_apart and os.getsid(0) != session[0]:
        return None
    return Request([program, *arguments], is_module, share, session, is_apart)


def set_log_level(verbosity: int) -> None:
    """Set the log level of this process and its children: INFO for one ``-v``, DEBUG for two. ``ValueError``."""
    if verbosity:
        os.environ["ZEROCOPY_LOG_LEVEL"] = "INFO" if verbosity == 1 else "DEBUG"
    if os.environ.get("ZEROCOPY_LOG_LEVEL"):
        from zerocopy.process import log_level  # only here: logging takes milliseconds

        log_level.configure()


def doubt_of_process(is_apart: bool) -> str:
    """Return why a fork server cannot run this process's program; empty if it can.

    Parameters
    ----------
    is_apart : bool
        Whether the fork server lives in another session.
    """
    if environment.is_disabled():
        return "ZEROCOPY_DISABLE is set"
    if sys.flags.inspect or sys.flags.interactive or os.environ.get("PYTHONINSPECT"):
        return "Python is to go on interactively after the program"
    if circumstances.reports_imports():
        return "Python is to report each import"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or profiler is at work"
    if any(signal.getitimer(timer) != (0, 0) for timer in _TIMERS):
        return "an interval timer runs, which the program would not have"
    if os.getsid(0) == os.getpid() and not is_apart:
        return "this process leads its session, which ends with it"
    if os.getpgrp() == 0:
        return "its process group is of another PID namespace"
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            return f"descriptor {descriptor} is closed"
    return ""


def doubt_of_record(record: Record) -> str:
    """Return why a program of this record cannot be started warm; empty if it can."""
    if record.doubt:
        return record.doubt
    unfit = _UNFIT.intersection(name.partition(".")[0] for name in record.modules)
    if unfit:
        return f"the program imports {', '.join(sorted(unfit))}"
    if "torch" in record.modules and "torch" not in importable_ahead(record):
        is_read = circumstances.reader(record.variables)
        changed = ", ".join(sorted(filter(is_read, record.changes)))
        return f"torch cannot be imported ahead{f': before, the program sets {changed}' * bool(changed)}"
    return ""


def importable_ahead(record: Record) -> list[str]:
    """Return the modules of a record that a program imports before it changes variables that an import reads.

    Changes by the import of an installed module count only if that module cannot be imported ahead.
    """
    is_read = circumstances.reader(record.variables)
    changes = [each for name, by in record.changes.items() if is_read(name) for each in by.items()]
    excluded = tuple(f"{name}." for name in record.excluded)
    found = [name for name in record.modules if not f"{name}.".startswith(excluded)]
    while True:
        ahead = {*found}
        first = min((count for by, count in changes if by not in ahead), default=len(record.modules))
        late = {*record.modules[first:]}
        if ahead.isdisjoint(late):
            return found
        found = [name for name in found if name not in late]


def checksum(request: Request) -> int:
    """Return a checksum of the script's text; 0 for a module, a folder or a pipe. ``OSError``."""
    if request.is_module or not os.path.isfile(request.words[0]):
        return 0
    with open(request.words[0], "rb") as file:
        return zlib.crc32(file.read())


def doubt_of_script(request: Request, record: Record) -> str:
    """Return why the text of a script cannot be started warm; empty if it can."""
    if request.is_module or os.path.isdir(request.words[0]):
        return ""
    try:
        if not stat.S_ISREG(os.stat(request.words[0]).st_mode):
            return f"{request.words[0]} is not a regular file, and a pipe can be read once only"
        with open(request.words[0], "rb") as file:
            text = file.read()
    except OSError as error:
        return f"{request.words[0]}: {error.strerror}"
    is_read, is_known = circumstances.reader(record.variables), zlib.crc32(text) == record.script
    for found in _ASSIGNMENT.finditer(text):
        name = next(filter(None, found.groups())).decode()
        if not name.isupper() and name in ("update", "|=", "load_dotenv"):
            return "the script sets environment variables together"
        if is_read(name) and not (is_known and name in record.changes):
            return f"the script sets {name}, which its imports may read"
    return ""
