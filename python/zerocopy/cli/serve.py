"""``zerocopy serve``: the model server in the foreground, or as a unit of systemd's."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from zerocopy.cli import runner, serving
from zerocopy.cli.output import flush, print_error, say
from zerocopy.share import status
from zerocopy.share.server import server, systemd
from zerocopy.share.wire import sockets

DESCRIPTION = """
Runs the model server until "zerocopy stop", SIGTERM or Ctrl-C stops it, or until no program has used it for a while.
You need not run it by hand: the first program that needs a server starts one in the background.
"""

EPILOG = (
    serving.exit_codes(
        fine="the server was stopped; or the unit was printed or written",
        bad="another server has the socket",
        trouble="the socket is not safe, or a value is not valid",
    )
    + """
example:
  $ zerocopy serve --max-bytes 16G --idle 86400
  $ zerocopy serve --systemd --max-bytes 16G && systemctl --user enable --now zerocopy
"""
)

# Variables of the environment that the unit keeps.
_KEPT = ("ZEROCOPY_SOCKET", "ZEROCOPY_MAX_BYTES", "ZEROCOPY_SHARE_IDLE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    serving.add_arguments(parser)
    parser.add_argument(
        "--max-bytes",
        metavar="SIZE",
        help="the most memory that results may take: bytes, or a number with K, M, G or T; results that no "
        "process uses are removed first, the least recently used before others (default: ZEROCOPY_MAX_BYTES, or no "
        "limit)",
    )
    parser.add_argument(
        "--idle",
        metavar="SECONDS",
        help="stop after this time without requests (default: ZEROCOPY_SHARE_IDLE, or an hour)",
    )
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--print-unit", action="store_true", help="print a systemd user unit, and do not serve")
    unit.add_argument(
        "--systemd",
        action="store_true",
        help="write the unit to ~/.config/systemd/user/zerocopy.service, and do not serve",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Serve, or see to the unit, and return the exit code."""
    return serving.run(parser, options, lambda: _run(parser, options))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from zerocopy.share import settings

    settings.parsed_bytes(options.max_bytes or "", "--max-bytes")  # a value that makes no sense is said now
    settings.parsed_seconds(options.idle or "", "--idle", default=0)
    given = {"ZEROCOPY_MAX_BYTES": options.max_bytes, "ZEROCOPY_SHARE_IDLE": options.idle}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    settings.Settings.of_environment()
    if options.print_unit:
        say(_unit().splitlines())
        return runner.FINE
    if options.systemd:
        return _write_unit()
    return _serve(parser.prog)


def _serve(prog: str) -> int:
    there = status()
    if there is not None:
        print_error(f"{prog}: server {there['pid']} serves there already")
        return runner.BAD
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    say([f"serving on {sockets.path()}, as process {os.getpid()}"])
    flush()
    return server.serve(sockets.path())


def _unit() -> str:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return systemd.unit({**kept, "ZEROCOPY_SOCKET": str(sockets.path())})


def _write_unit() -> int:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(home) / "systemd" / "user" / "zerocopy.service"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_unit())
    say([f"{path} is written; systemctl --user enable --now zerocopy starts it"])
    return runner.FINE
