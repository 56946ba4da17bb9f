"""The Debian package, as far as it can be checked without building it: names, version, what it installs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "debian"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def fields(name: str) -> dict[str, str]:
    """Return the fields of a control file; a name that several paragraphs have keeps its first value."""
    text = re.sub(r"\n[ \t]+", " ", (DEBIAN / name).read_text())
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key, value.strip())
    return found


def test_changelog_has_the_version_of_the_project() -> None:
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    matched = re.fullmatch(r"(?P<source>[a-z0-9.+-]+) \((?P<version>[^)]+)-\d+\) \w+; urgency=\w+", first)
    assert matched, first
    assert matched["version"] == PROJECT["version"]
    assert matched["source"] == PROJECT["name"] == fields("control")["Source"]


def test_maintainer_is_the_same_in_the_changelog_and_the_control_file() -> None:
    signature = re.search(r"^ -- (.+?)  ", (DEBIAN / "changelog").read_text(), flags=re.MULTILINE)
    assert signature and signature[1] == fields("control")["Maintainer"]


def test_package_has_the_name_of_the_module() -> None:
    assert fields("control")["Package"] == "python3-" + PROJECT["scripts"]["zerocopy"].partition(".")[0]


def test_build_dependencies_have_the_build_requirements_of_the_project() -> None:
    needed = fields("control")["Build-Depends"]
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for name in ("torch", *(re.split(r"\W", requirement)[0] for requirement in requirements)):
        assert re.search(rf"\bpython3-{name}\b", needed), name
    for library in ("libdeflate", "simdjson", "zlib"):  # of the core
        assert re.search(rf"\b\w*{library}\w*-dev\b", needed), library


def test_licence_is_that_of_the_project() -> None:
    licence = re.search(r'license="(?P<name>[^"]+)"', (ROOT / "setup.py").read_text())
    assert licence and fields("copyright")["License"].startswith(licence["name"])


def test_rules_can_be_executed() -> None:
    assert os.access(DEBIAN / "rules", os.X_OK)


def test_test_of_the_package_runs_a_file_of_the_repository() -> None:
    command = fields("tests/control")["Test-Command"]
    assert (ROOT / command.split()[-1]).is_file()
