"""The manual page ``docs/zerocopy.1`` against the parsers of the commands."""

from __future__ import annotations

import argparse
import importlib
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from zerocopy import cli

PAGE = Path(__file__).parents[2] / "docs" / "zerocopy.1"
RENEW = "python docs/manual.py >docs/zerocopy.1"


def test_manual_page_equals_the_parsers() -> None:
    page = runpy.run_path(str(PAGE.with_name("manual.py")))["page"]
    assert PAGE.read_text() == page(), f"renew it: {RENEW}"


def test_manual_page_has_each_command_with_its_options() -> None:
    text = PAGE.read_text().replace("\\-", "-")
    for name in cli.COMMANDS:
        section = text.partition(f"\n.SS zerocopy {name}\n")[2].partition("\n.SS ")[0]
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(f"zerocopy.cli.{name.replace('-', '_')}").add_arguments(parser)
        options = [option for action in parser._actions for option in action.option_strings]
        assert section and all(f"\\fB{option}\\fR" in section for option in options), name


def test_no_line_of_the_manual_page_is_an_unknown_request() -> None:
    requests = {line.split()[0] for line in PAGE.read_text().splitlines() if line[:1] in (".", "'")}
    assert requests <= {".TH", '.\\"', ".SH", ".SS", ".B", ".I", ".br", ".PP", ".TP", ".nf", ".fi"}


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man")
def test_man_formats_the_page_without_warnings() -> None:
    done = subprocess.run(["man", "--warnings", "-l", str(PAGE)], capture_output=True, text=True, check=True)
    assert done.stderr == "" and "zerocopy" in done.stdout
