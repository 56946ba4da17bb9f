"""The command line. A subcommand is a module of this package and a line in :data:`COMMANDS`.

The module has ``DESCRIPTION``, perhaps ``EPILOG``, ``add_arguments(parser)`` and ``execute(parser, options)``, which
returns the exit code. A module is imported when its command is used, so that no command waits for the imports of
another. ``docs/manual.py`` writes the manual page from these modules.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

import zerocopy
from zerocopy import _public_names, display
from zerocopy.cli import output

#: The summary of each subcommand in the help.
COMMANDS = {
    "bench": "measure loaders side by side on a file",
    "build-bridge": "compile the part that depends on the release of PyTorch",
    "convert": "write checkpoints in another format, or as shards",
    "diff": "compare two checkpoints: names, dtypes, shapes and values",
    "env": "print what a bug report needs: versions, system, variables",
    "explain": "say which bytes of a checkpoint a load maps, and why not the others",
    "ls": "list the tensors of a checkpoint, and its other values",
    "map": "list the parts of a checkpoint's file, byte by byte",
    "plan": "list the bytes of a checkpoint that each rank of a job would read",
    "ps": "list the results that are kept for programs",
    "report": "write an HTML page about a checkpoint",
    "run": "run a Python program with torch.load patched",
    "scan": "list the globals of a checkpoint's pickles, and whether a safe load accepts it",
    "show": "print a tensor of a checkpoint, or a part, with statistics",
    "stop": "end the fork servers of warm starts",
    "unload": "remove kept results",
    "verify": "check a checkpoint's structure and checksums",
    "warm": "load checkpoints, and keep the results for programs",
}

_MAX_MESSAGE = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments (by default ``sys.argv[1:]``) name, and return its exit code.

    A command line that makes no sense exits with 2.
    """
    # No abbreviations: with them, options of a program under "run" might be taken for ours.
    parser = _Parser("zerocopy", description="PyTorch checkpoints without copying.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"zerocopy {zerocopy.__version__}")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        subparsers.add_parser(name, help=summary, allow_abbrev=False).name = name
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:  # standard output and the exceptions are the program's
        options = parser.parse_args(words)
        return options.execute(options.parser, options)
    try:
        return _execute(parser, words)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        parser.exit(2, f"{_public_names.missing_torch(f'zerocopy {words[0]}')}\n")
    except BrokenPipeError:
        output.silence_stdout()
        return 141  # runner.BROKEN_PIPE, whose module takes longer to import
    except output.OutputError as error:
        output.silence_stdout()
        parser.exit(2, f"zerocopy: standard output: {error.strerror}\n")


def _execute(parser: argparse.ArgumentParser, words: list[str]) -> int:
    try:
        with output.writing():  # the help, or the version
            options = parser.parse_args(words)
        from zerocopy.cli import runner  # the help needs none

        code = runner.run(options.parser.name, options, lambda: options.execute(options.parser, options))
    except SystemExit:
        output.flush()
        raise
    output.flush()
    return code


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the width of the terminal, and keeps the lines of lists and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._filled(paragraph, width) for paragraph in text.strip("\n").split("\n\n"))

    def _filled(self, paragraph: str, width: int) -> str:
        if "\n  " not in paragraph:
            return textwrap.fill(" ".join(paragraph.split()), width)
        # A command that is an example stays on one line, however long it is.
        return "\n".join(
            line if line.lstrip().startswith("$ ") else textwrap.fill(line, width, subsequent_indent="     ")
            for line in paragraph.split("\n")
        )


class _Parser(argparse.ArgumentParser):
    """Shows arguments so that they cannot control the terminal. Raises the errors of standard output.

    argparse drops the latter since Python 3.12.
    """

    def error(self, message: str) -> NoReturn:
        super().error(display.shown(message, _MAX_MESSAGE))

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = file or sys.stderr
        if message and stream is not None:
            stream.write(display.shown(message, None, keep="\n"))


class _CommandParser(_Parser):
    """Parses the arguments of a subcommand, and imports the subcommand's module only then."""

    name: str

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        command = importlib.import_module(f"{__name__}.{self.name.replace('-', '_')}")
        self.description = command.DESCRIPTION
        self.epilog = getattr(command, "EPILOG", None)
        self.formatter_class = _HelpFormatter
        command.add_arguments(self)
        self.set_defaults(execute=command.execute, parser=self)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # Left to the parser of all commands, the error would have the usage of that one.
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown
