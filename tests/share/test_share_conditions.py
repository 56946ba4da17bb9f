"""Conditions of a kept result, and whether they hold. test_share.py has those of real calls."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerocopy.share.conditions import file_identity, program
from zerocopy.share.conditions.conditions import Conditions, Here, first_changed, names_of


def conditions(**facts: Any) -> Conditions:
    here = Here()
    defaults: dict[str, Any] = {"paths": [], "folder": None, "absent": [], "variables": {}, "argv": None}
    more: dict[str, Any] = {"modules": {}, "imported": [], "namespaces": {}, "unseen": []}
    process = {"boot": file_identity.boot(), "environment": here.environment, "state": here.state}
    return Conditions(**{**defaults, **more, **process, **facts})


def why_not(**facts: Any) -> str:
    return conditions(**facts).why_not(Here())


def test_path_that_is_different_is_named(tmp_path: Path) -> None:
    path, folder, link = (str(tmp_path / name) for name in ("a", "folder", "link"))
    Path(path).write_text("1")
    Path(folder).mkdir()
    Path(link).symlink_to(path)
    rows: list[tuple[list[Any], Callable[[], object]]] = [
        (["late", "missing"], lambda: (tmp_path / "late").touch()),
        ([folder, "names", *names_of(folder)], lambda: Path(folder, "b").touch()),
        ([path, "file", *file_identity.identity(Path(path).stat())], lambda: Path(path).write_text("22")),
        ([path, "access", os.F_OK, True], lambda: Path(path).rename(tmp_path / "moved")),
        ([link, "link", path], lambda: Path(link).unlink()),
        (["folder", "folder"], lambda: shutil.rmtree(folder)),
    ]
    for row, change in rows:
        row[0] = os.path.join(tmp_path, row[0])
        assert first_changed([row]) is None and why_not(paths=[row]) == "", row
        change()
        assert first_changed([row]) == row and row[0] in why_not(paths=[row]), row


def test_times_of_a_folder_do_not_count(tmp_path: Path) -> None:
    row = [str(tmp_path), "names", *names_of(str(tmp_path))]
    (tmp_path / "a").touch()
    (tmp_path / "a").unlink()
    (tmp_path / "__pycache__").mkdir()
    assert first_changed([row]) is None


def test_variables_folders_and_arguments_that_differ_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a"])
    known = conditions(variables={"RANK": None}, folder=str(tmp_path), argv=["a"], absent=["here"])
    assert known.why_not(Here()) == ""
    for change, undo, name in (
        (lambda: monkeypatch.setenv("RANK", "1"), lambda: monkeypatch.delenv("RANK"), "RANK"),
        (lambda: monkeypatch.setenv("ZC_A", "1"), lambda: monkeypatch.delenv("ZC_A"), "environment"),
        (
            lambda: monkeypatch.setattr(sys, "argv", ["b"]),
            lambda: monkeypatch.setattr(sys, "argv", ["a"]),
            "argv",
        ),
        ((tmp_path / "here").touch, (tmp_path / "here").unlink, "here"),
        (lambda: monkeypatch.chdir("/"), lambda: monkeypatch.chdir(tmp_path), "folder"),
    ):
        change()
        assert name in known.why_not(Here())
        undo()
        assert known.why_not(Here()) == ""


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
    known = conditions(modules={MODULE: f"{one}/{MODULE}.py"}, imported=[MODULE])
    assert MODULE in known.why_not(Here()), "there is none here"
    monkeypatch.syspath_prepend(one)
    assert known.why_not(Here()) == ""
    monkeypatch.syspath_prepend(two)
    assert MODULE in known.why_not(Here())
    (two / f"{MODULE}.py").unlink()
    assert known.why_not(Here()) == ""


def test_a_module_that_is_imported_counts_as_it_is(
    two_programs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_programs
    monkeypatch.syspath_prepend(one)
    __import__(MODULE)
    try:
        monkeypatch.syspath_prepend(two)
        assert why_not(modules={MODULE: f"{one}/{MODULE}.py"}) == ""
        assert why_not(modules={MODULE: f"{two}/{MODULE}.py"}) != ""
    finally:
        del sys.modules[MODULE]


def test_an_own_module_in_front_of_an_installed_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = conditions(imported=["colorsys"])
    assert known.why_not(Here()) == ""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert known.why_not(Here()) == ""
    (tmp_path / "colorsys.py").write_text("")
    assert "colorsys" in known.why_not(Here())


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
