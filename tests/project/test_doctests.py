"""The examples in the docstrings of zerocopy are run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

import zerocopy
from zerocopy._torch import distributed, programs

MODULES = ["zerocopy"] + [
    found.name
    for found in pkgutil.walk_packages(zerocopy.__path__, "zerocopy.")
    if not found.name.endswith("__main__")
]
NEED_DCP = {
    f"zerocopy.distributed.{name}" for name in ("plan_items", "planner", "reader", "sharing", "writer")
}


@pytest.mark.filterwarnings("ignore")  # torch's about its own functions
def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    absent = NEED_DCP if distributed.checkpoint_module() is None else set()
    try:
        programs.require_export()
    except zerocopy.UnsupportedError:
        absent = absent | {"zerocopy.export"}
    flags, failed, attempted = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, [], 0
    for name in sorted(set(MODULES) - absent):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        result = doctest.testmod(importlib.import_module(name), optionflags=flags)
        attempted += result.attempted
        failed += [name] * bool(result.failed)
    assert not failed
    assert attempted > 100
