"""Conditions that a worker records of a call, and their check in another process, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import noting, sources
from zerocopy.share.conditions import environment, program, watching
from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.wire import file_identity

Noting = Callable[..., Conditions]
VARIABLE = "ZC_TEST_VARIABLE"


@pytest.fixture(scope="module", params=["watched", "heard"])
def noted(request: pytest.FixtureRequest) -> Iterator[Noting]:
    """Return what a function depends on, as the preloaded library sees it and as audit events tell it."""
    library = watching.library()
    assert library is not None
    preloaded = {"LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()}
    with subprocess.Popen(
        [sys.executable, noting.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            **(preloaded if request.param == "watched" else {}),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        },
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def note(function: Callable[[str], Any], folder: Path | str = "") -> Conditions:
            process.stdin.write(json.dumps([function.__name__, str(folder)[1:]]) + "\n")
            process.stdin.flush()
            body = json.loads(process.stdout.readline())
            assert "error" not in body, body["error"]
            conditions = Conditions(**json.loads(json.dumps(body)))
            native = [why for why in conditions.unseen if "watch library" in why]
            assert len(native) == (request.param == "heard")
            return conditions

        yield note
        process.stdin.close()


@pytest.mark.parametrize("name", ["variable", "variable_by_getenv", "variable_in_bytes", "variable_there"])
def test_a_variable_that_is_read_counts(noted: Noting, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    conditions = noted(getattr(sources, name))
    assert conditions.environment == {VARIABLE: None}
    assert conditions.why_not_here() == ""
    monkeypatch.setenv(VARIABLE, "1")
    assert VARIABLE in conditions.why_not_here()


@pytest.mark.parametrize("name", ["variables", "variables_of_copy", "variables_shown"])
def test_all_variables_count_that_are_copied(
    noted: Noting, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    conditions = noted(getattr(sources, name))
    assert conditions.all_variables and "PATH" in conditions.environment
    assert not environment.SESSION & set(conditions.environment)
    ours = {name: value for name, value in conditions.environment.items() if os.environ.get(name) != value}
    assert set(ours) <= {"LD_PRELOAD", "PYTHONPATH"}  # the fixture's own
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for name, value in ours.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("SSH_TTY", "another")
    assert conditions.why_not_here() == ""
    monkeypatch.setenv(VARIABLE, "1")
    assert "variable" in conditions.why_not_here()


@pytest.mark.parametrize(
    "name", ["argument_found", "arguments_added", "arguments_reversed", "arguments_taken"]
)
def test_the_arguments_of_the_program_count_however_they_are_read(
    noted: Noting, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert noted(sources.nothing).argv is None
    conditions = noted(getattr(sources, name))
    assert conditions.argv is not None
    monkeypatch.setattr(sys, "argv", conditions.argv)
    assert conditions.why_not_here() == ""
    monkeypatch.setattr(sys, "argv", [*conditions.argv, "--another"])
    assert "argv" in conditions.why_not_here()


def test_looking_for_proxies_reads_no_other_variables(noted: Noting) -> None:
    conditions = noted(sources.proxies)
    assert not conditions.all_variables
    assert all(name.lower().endswith(("_proxy", "request_method")) for name in conditions.environment)


def test_a_variable_that_is_not_read_does_not_count(
    noted: Noting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("1")
    conditions = noted(sources.text, tmp_path)
    monkeypatch.setenv(VARIABLE, "1")
    assert conditions.environment == {} and conditions.why_not_here() == ""


def test_a_variable_of_the_calls_own_counts_as_it_was(noted: Noting) -> None:
    assert noted(sources.own_variable).environment == {VARIABLE: None}


@pytest.mark.parametrize("name", ["itself", "listed", "scanned", "matched", "opened"])
def test_the_current_folder_counts_where_it_is_asked_for(
    noted: Noting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    assert noted(sources.nothing).folder is None
    conditions = noted(getattr(sources, f"folder_{name}"))
    assert conditions.folder == str(Path.cwd()) and conditions.why_not_here() == ""
    monkeypatch.chdir(tmp_path)
    assert "folder" in conditions.why_not_here()


def test_a_relative_path_in_vain_counts_in_each_folder(
    noted: Noting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conditions = noted(sources.relative)
    if conditions.unseen:  # nothing was opened
        assert conditions.folder is None and conditions.absent == []
        return
    assert conditions.folder is None and conditions.absent == ["here"]
    monkeypatch.chdir(tmp_path)
    assert conditions.why_not_here() == ""
    (tmp_path / "here").write_text("1")
    assert "here" in conditions.why_not_here()


def test_another_file_of_the_same_path_is_told(noted: Noting, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    conditions = noted(sources.text, tmp_path)
    path = str(tmp_path / "a")
    assert conditions.files[path] == file_identity.identity_at(path)
    assert conditions.files_hold() and conditions.why_not_paths() == ""
    assert not conditions.files_hold({path: (1, 2, 3, 4, 5)}), "what the client saw counts"
    (tmp_path / "a").write_text("2")
    assert not conditions.files_hold() and path in conditions.why_not_paths()


# ------------------------------------------------------------------------------- modules

MODULE = "imported_by_sources"


@pytest.fixture
def two_programs(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{MODULE}.py").write_text(f"VALUE = {name!r}")
    return tmp_path / "one", tmp_path / "two"


def test_modules_of_one_name_are_told_apart(
    two_programs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_programs
    conditions = Conditions(modules={MODULE: f"{one}/{MODULE}.py"}, imported=[MODULE])
    assert MODULE in conditions.why_not_here(), "there is none here"
    monkeypatch.syspath_prepend(one)
    assert conditions.why_not_here() == ""
    monkeypatch.syspath_prepend(two)
    assert MODULE in conditions.why_not_here()
    (two / f"{MODULE}.py").unlink()
    assert conditions.why_not_here() == ""


def test_a_module_that_is_imported_counts_as_it_is(
    two_programs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_programs
    monkeypatch.syspath_prepend(one)
    __import__(MODULE)
    try:
        monkeypatch.syspath_prepend(two)
        assert Conditions(modules={MODULE: f"{one}/{MODULE}.py"}).why_not_here() == ""
        assert Conditions(modules={MODULE: f"{two}/{MODULE}.py"}).why_not_here() != ""
    finally:
        del sys.modules[MODULE]


def test_an_own_module_in_front_of_an_installed_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = Conditions(imported=["colorsys"])
    assert conditions.why_not_here() == ""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert conditions.why_not_here() == ""
    (tmp_path / "colorsys.py").write_text("")
    assert "colorsys" in conditions.why_not_here()


@pytest.mark.parametrize("kind", ["module", "package", "namespace", "none"])
def test_a_module_is_found_where_it_would_be_imported_from(tmp_path: Path, kind: str) -> None:
    name = f"zc_{kind}"
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        if kind == "module":
            (folder / f"{name}.py").write_text("")
        elif kind in ("package", "namespace"):
            (folder / name).mkdir()
        if kind == "package":
            (folder / name / "__init__.py").write_text("")
    entries = [str(tmp_path / "one"), str(tmp_path / "two")]
    before = list(sys.path)
    sys.path[:0] = entries
    try:
        expected = program.origin_of(__import__(name)) if kind != "none" else None
        assert program.found(name, entries) == expected
    finally:
        sys.path[:] = before
        sys.modules.pop(name, None)


def test_the_programs_own_modules_are_noted(noted: Noting, tmp_path: Path) -> None:
    (tmp_path / f"{MODULE}.py").write_text("VALUE = 1")
    conditions = noted(sources.imported, tmp_path)
    assert MODULE in conditions.imported
    assert conditions.modules == {"tests": str(Path(__file__).parents[1])} or "tests" in conditions.modules
    # It was put on sys.path by the call itself: its file counts.
    assert MODULE not in conditions.modules and str(tmp_path / f"{MODULE}.py") in conditions.files


def test_namespaces_of_one_process_are_one() -> None:
    assert file_identity.namespace() == file_identity.namespace() and all(
        isinstance(part, int) for part in file_identity.namespace()
    )
