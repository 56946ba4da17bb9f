"""The examples in the docstrings of zerocopy are run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

import zerocopy

MODULES = ["zerocopy"] + [
    found.name
    for found in pkgutil.walk_packages(zerocopy.__path__, "zerocopy.")
    if not found.name.endswith("__main__")
    if found.name != "zerocopy._watch"  # libc loads it, and not Python
]
NEED_DCP = {"plan_items", "planner", "reader", "sharing", "writer"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name.removeprefix("zerocopy.distributed.") in NEED_DCP:
        pytest.importorskip("torch.distributed.checkpoint")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0
