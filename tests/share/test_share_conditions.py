"""Conditions of a result, and their check in another process, without a server. test_share.py has them through one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerocopy.share.conditions import program
from zerocopy.share.conditions.conditions import Conditions, names_of
from zerocopy.share.wire import file_identity


def test_path_that_is_different_is_named(tmp_path: Path) -> None:
    path, folder, link = (str(tmp_path / name) for name in ("a", "folder", "link"))
    Path(path).write_text("1")
    Path(folder).mkdir()
    Path(link).symlink_to(path)

    def become_link() -> None:
        Path(folder).rename(tmp_path / "other")
        Path(folder).symlink_to("other")

    rows: list[tuple[list[Any], Callable[[], object]]] = [
        (["late", "missing"], lambda: (tmp_path / "late").touch()),
        ([folder, "names", *names_of(folder)], lambda: Path(folder, "b").touch()),
        ([path, "file", *(file_identity.identity_at(path) or ())], lambda: Path(path).write_text("22")),
        ([path, "there", os.F_OK, True], lambda: Path(path).rename(tmp_path / "moved")),
        ([link, "link", path], lambda: Path(link).unlink()),
        ([folder, "resolved", folder], become_link),
        (["other", "folder"], lambda: shutil.rmtree(tmp_path / "other")),
    ]
    for row, change in rows:
        row[0] = os.path.join(tmp_path, row[0])  # noqa: PTH118
        conditions = Conditions(paths=[row])
        assert conditions.files_hold() and conditions.why_not_paths() == "", row
        change()
        assert not Conditions(paths=[row]).files_hold() and row[0] in conditions.why_not_paths(), row
    known = Conditions(paths=[[path, "file", 1, 2, 3, 4, 5]])
    assert known.files_hold({path: (1, 2, 3, 4, 5)}) and not known.files_hold(), "what the client saw counts"
    assert not Conditions(paths=[[path, "never"]]).files_hold()


def test_variables_folders_and_arguments_that_differ_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    conditions = Conditions(environment={"ZC_A": None}, folder=str(tmp_path), argv=["a"], absent=["here"])
    monkeypatch.setattr(sys, "argv", ["a"])
    assert conditions.why_not_here() == ""
    monkeypatch.setenv("ZC_A", "1")
    assert "ZC_A" in conditions.why_not_here()
    monkeypatch.delenv("ZC_A")
    monkeypatch.setattr(sys, "argv", ["b"])
    assert "argv" in conditions.why_not_here()
    monkeypatch.setattr(sys, "argv", ["a"])
    (tmp_path / "here").touch()
    assert "here" in conditions.why_not_here()
    (tmp_path / "here").unlink()
    monkeypatch.chdir("/")
    assert "folder" in conditions.why_not_here()


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


def test_namespaces_of_one_process_are_one() -> None:
    assert file_identity.namespace() == file_identity.namespace() and all(
        isinstance(part, int) for part in file_identity.namespace()
    )
