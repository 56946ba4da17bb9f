"""``zerocopy completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Mapping

from zerocopy.cli import runner
from zerocopy.cli.output import say

DESCRIPTION = """
Prints a script for bash that completes commands, options and file names. The script does not start zerocopy when a key
is pressed, so print it again after an upgrade.
"""

EPILOG = """
example:
  $ zerocopy completion > ~/.local/share/bash-completion/completions/zerocopy
"""

_SCRIPT = """\
# bash completion of zerocopy
_zerocopy() {
    local current="${COMP_WORDS[COMP_CWORD]}" command="" place word
    for ((place = 1; place < COMP_CWORD; place++)); do
        word="${COMP_WORDS[place]}"
        case "$word" in
            -*) ;;
            *) command="$word"; break ;;
        esac
    done
    COMPREPLY=()
    if [[ -z "$command" ]]; then
        COMPREPLY=($(compgen -W "%(commands)s --help --version" -- "$current"))
        return
    fi
    [[ "$current" == -* ]] || return
    case "$command" in
%(cases)s
    esac
}
complete -o default -F _zerocopy zerocopy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "shell", choices=["bash"], nargs="?", default="bash", help="the shell (default: bash)"
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the script, and return the exit code."""
    return _print()


def _print() -> int:
    from zerocopy.cli import COMMANDS

    say([script(COMMANDS).rstrip("\n")])
    return runner.FINE


def script(commands: Mapping[str, str]) -> str:
    """Return the script for some commands."""
    cases = "\n".join(
        f'        {name}) COMPREPLY=($(compgen -W {shlex.quote(" ".join(_options_of(name)))} -- "$current")) ;;'
        for name in commands
    )
    return _SCRIPT % {"commands": " ".join(commands), "cases": cases}


def _options_of(name: str) -> Iterator[str]:
    module = importlib.import_module(f"zerocopy.cli.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(name)
    module.add_arguments(parser)
    for action in parser._actions:
        yield from action.option_strings
