"""Writes the manual page ``docs/zerocopy.1`` from the parsers of the commands.

``python docs/manual.py >docs/zerocopy.1`` renews it; ``tests/cli/test_manual.py`` compares both.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from zerocopy import cli
from zerocopy._version import __version__

_VARIABLES = (
    ("ZEROCOPY_BACKEND", "How files are read: auto, mmap, pread or direct."),
    ("ZEROCOPY_DISABLE", "1, true, yes or on: programs run without the patches."),
    ("ZEROCOPY_LOG_LEVEL", "DEBUG, INFO, ...: prints the log of the library to standard error."),
    ("ZEROCOPY_NUM_THREADS", "The number of threads that may read a file at once."),
    ("ZEROCOPY_PROGRESS", "0: no progress bars on a terminal."),
    ("ZEROCOPY_CACHE", "The folder of kept results, in place of $XDG_CACHE_HOME/zerocopy."),
    ("ZEROCOPY_MAX_BYTES", "The most room that kept results may take on the disk."),
    ("NO_COLOR", "No bold headings on a terminal."),
    ("TQDM_DISABLE", "1: no progress bars on a terminal."),
)


def page() -> str:
    """Return the manual page of ``zerocopy``, with a section for each command."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH ZEROCOPY 1 "" "zerocopy {__version__}"'
    yield '.\\" Written by docs/manual.py: change the help of a command, not this file.'
    yield ".SH NAME"
    yield "zerocopy \\- load, inspect, convert and share PyTorch checkpoints"
    yield ".SH SYNOPSIS"
    yield ".B zerocopy"
    yield ".I COMMAND"
    yield "[\\fIARGUMENT\\fR ...]"
    yield ".br"
    yield ".B zerocopy"
    yield "\\-\\-help | \\-\\-version"
    yield ".SH DESCRIPTION"
    yield "Looks at checkpoints of PyTorch in any format, runs programs that load them without copying, and"
    yield "shares results between processes. Each command below has \\fB\\-\\-help\\fR."
    yield ".SH COMMANDS"
    for name in cli.COMMANDS:
        yield from _command(name)
    yield ".SH ENVIRONMENT"
    for variable, meaning in _VARIABLES:
        yield ".TP"
        yield f".B {_roff(variable)}"
        yield _roff(meaning)


def _command(name: str) -> Iterator[str]:
    command = importlib.import_module(f"{cli.__name__}.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(f"zerocopy {name}", add_help=False)
    command.add_arguments(parser)
    positionals = [action for action in parser._actions if not action.option_strings]
    yield f".SS zerocopy {_roff(name)}"
    words = [f"\\fI{_roff(_value(action))}\\fR" for action in positionals]
    yield " ".join([f"\\fBzerocopy {_roff(name)}\\fR [\\fIOPTION\\fR ...]", *words])
    yield ".PP"
    yield from _text(" ".join(command.DESCRIPTION.split()))
    for action in parser._actions:
        yield ".TP"
        yield _heading(action)
        # The parser's own formatter fills in %(default)s and the like.
        yield from _text(parser._get_formatter()._expand_help(action) if action.help else "")
    if epilog := getattr(command, "EPILOG", "").strip("\n"):
        yield ".PP"
        yield ".nf"
        yield from (_roff(line) for line in epilog.split("\n"))
        yield ".fi"


def _heading(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"\\fI{_roff(_value(action))}\\fR"
    names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in action.option_strings)
    return names if action.nargs == 0 else f"{names} \\fI{_roff(_value(action))}\\fR"


def _value(action: argparse.Action) -> str:
    """Return what stands for the value of an argument: A, A ..., or {a,b}."""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    value = str(action.metavar or action.dest.upper())
    if action.nargs in ("*", "?"):
        value = f"[{value}]"
    return f"{value} ..." if action.nargs in ("*", "+", argparse.PARSER) else value


def _text(text: str) -> Iterator[str]:
    """Yield a paragraph, a line for each sentence."""
    yield from filter(None, _roff(" ".join(text.split())).replace(". ", ".\n").split("\n"))


def _roff(text: str) -> str:
    """Return text in which nothing is a request or an escape of roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    print(page(), end="")
