"""``zerocopy run``: a program as Python itself runs it, except that ``torch.load`` is patched.

The program gets what ``python script.py`` or ``python -m module`` would give it: ``sys.argv``, the first entry of
``sys.path``, and a ``__main__`` that is its own until the process ends.

One thing differs: torch is there before the program's first line, so what it reads on import (``OMP_NUM_THREADS``,
say) has to be in the environment already.
"""

from __future__ import annotations

import argparse

from zerocopy import environment
from zerocopy.launch import circumstances, program
from zerocopy.launch.recording import Recorder
from zerocopy.launch.request import Request, named, set_log_level

DESCRIPTION = """
Runs an unchanged program as python would. When the program imports torch, torch.load is replaced by a function that
maps checkpoints instead of reading them. Python processes that the program starts are patched too, such as workers
of torchrun; ZEROCOPY_RUN and PYTHONPATH in the environment reach them. With --share, the results of
loading calls are kept in files, and later programs map them. With --warm, the program is forked from a process that
has its imports already, so it starts in milliseconds; docs/warm-starts.md lists the differences. ZEROCOPY_DISABLE=1
leaves torch.load as it is.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options. All words after the program are its own arguments."""
    parser.add_argument(
        "--share",
        action="store_true",
        help="keep the results of from_pretrained, pipeline, torch.load and others for later programs, and take them",
    )
    parser.add_argument(
        "--warm",
        action="store_true",
        help="fork the program from a process that has its imports, from the second run on",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print to standard error how each file is read, and at the end what was mapped and what was left to "
        "torch; -vv also prints why (the same as ZEROCOPY_LOG_LEVEL=INFO, DEBUG)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    # One argument for both: between two, argparse would lose the first "--" of the program's own.
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs=argparse.PARSER,
        help='a script, a folder or zip file with a __main__.py, "-" for standard input, or a command written in '
        "Python such as torchrun; then the program's own arguments",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run the program to its end. Its exceptions propagate to the interpreter."""
    words = named(options.program[options.program[0] == "--" :], options.module)
    name, *arguments = words
    try:
        set_log_level(options.verbose)
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    can_be_recorded = name != "-" and not environment.is_disabled() and not circumstances.reports_imports()
    session = None
    if options.warm and can_be_recorded:
        try:
            session = circumstances.session()
            Recorder(Request(words, options.module, options.share, session), circumstances.own_path())
        except OSError as error:
            import logging

            logging.getLogger("zerocopy").info("run --warm: no warm start next time: %s", error)
    try:
        start = program.prepared(name, arguments, options.module)
    except OSError as error:
        reason = f"can't open file {error.filename or name!r}: [Errno {error.errno}] {error.strerror}"
        parser.exit(2, f"{parser.prog}: {reason}\n")
    program.patch_this_process(options.share, session)
    program.run(start)
    return 0
