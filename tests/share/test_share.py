"""zerocopy.share.load gives what the call itself gives, and makes it anew when what it was made of changes."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import random
import signal
import sqlite3
import sys
import tarfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import share_differential
import sharing
import sources
import torch
import wrong_shares
from conftest import Child, mappings
from share_catalog import CASES, Case
from sharing import Module, age, in_another_process
from torch.utils.hooks import RemovableHandle

import zerocopy
from zerocopy import share
from zerocopy.share.conditions import generators
from zerocopy.share.conditions.hashes import Hashes
from zerocopy.share.conditions.messages import Messages
from zerocopy.share.objects import custom_reducers

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("share") / "cache"


@pytest.fixture
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a test use the cache of this file, without results of earlier tests."""
    monkeypatch.setenv("ZEROCOPY_CACHE", str(folder))
    share.unload("*")
    yield folder
    share.unpatch_all()


def bytes_written() -> int:
    return sum(entry.written for entry in sharing.entries())


# ------------------------------------------------------------------------------------- the catalogue

# One of so many cases runs here, besides those that are always run.
EVERY = 6
#: The others import a package, or parts of torch, for seconds.
THEMES = ("identity", "modules", "objects", "programs", "seeds", "sources", "states", "tensors")

LEAVES_ITS_STATE = ("states/loaded_with_added_safe_globals", "states/refused_without_safe_globals")


def in_theme(theme: str) -> list[Case]:
    cases = [case for case in share_differential.sample(EVERY) if case.name.startswith(f"{theme}/")]
    return [case for case in cases if case.why_skipped() is None and case.name not in LEAVES_ITS_STATE]


@pytest.mark.parametrize("theme", THEMES)
def test_calls_of_the_catalogue_give_what_the_calls_themselves_give(theme: str, tmp_path: Path) -> None:
    found = {}
    for case in in_theme(theme):
        problems = share_differential.problems_here(case, tmp_path / case.name)
        found.update({case.name: problems} if problems else {})
    assert not found, "\n".join("\n".join([name, *problems]) for name, problems in found.items())


@pytest.mark.parametrize(
    ("wrong", "name", "message"), wrong_shares.ALL, ids=lambda x: getattr(x, "__name__", "")
)
def test_wrong_share_is_noticed(tmp_path: Path, wrong: Any, name: str, message: str) -> None:
    problems = share_differential.problems_here(CASES[name], tmp_path / name, wrong)
    assert message in "\n".join(problems), problems


# ------------------------------------------------------------------------------------- what comes back


def test_module_is_whole_and_private() -> None:
    first, second = share.load(Module), share.load(Module)
    assert not first.training and first.second.weight is first.first.weight
    assert isinstance(first.frozen, torch.nn.Parameter) and not first.frozen.requires_grad
    assert first.first.weight.requires_grad and first.note == {"name": "model"}
    assert "scratch" in dict(first.named_buffers()) and "scratch" not in first.state_dict()
    x = torch.ones(2, 40)
    assert torch.equal(first(x), second(x)) and torch.equal(first(x), 2 * first.forward(x))
    first.register_forward_hook(lambda module, args, output: output + 10)
    assert torch.equal(first(x), first.forward(x) * 2 + 10)
    first(x).sum().backward()
    assert first.first.weight.grad is not None and second.first.weight.grad is None
    torch.optim.SGD(first.parameters(), 0.1).step()
    assert not torch.equal(first.first.weight, second.first.weight)
    assert torch.equal(second.first.weight, share.load(Module).first.weight)


def test_write_to_a_result_stays_in_its_process() -> None:
    first, second = share.load(sharing.filled, 5000, 3), share.load(sharing.filled, 5000, 3)
    first.add_(1)

    def write() -> None:
        found = share.load(sharing.filled, 5000, 3)
        assert int(found.sum()) == int(second.sum()) == 15_000
        found.zero_()
        second.zero_()

    in_another_process(write)
    assert int(first.sum()) == 20_000 and int(second.sum()) == 15_000
    assert int(share.load(sharing.filled, 5000, 3).sum()) == 15_000


def test_arrays_and_memoryviews_are_shared_and_private() -> None:
    array = numpy.arange(50_000.0)
    found, again = (share.load(sharing.itself, array) for _ in range(2))
    found[:] = 0
    assert numpy.array_equal(again, array)
    content = bytes(range(256)) * 400
    for shape, is_readonly in (None, True), (None, False), ((160, 160), True):
        view = sharing.view_of(content, shape, is_readonly)
        made = share.load(sharing.view_of, content, shape, is_readonly)
        assert made == view
        assert (made.format, made.shape, made.readonly) == (view.format, view.shape, view.readonly)


def test_mapped_and_masked_arrays_stay_views(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.arange(20_000.0))
    for _ in range(2):
        fixed, changeable, part, values, masked, records, column = share.load(
            sharing.mapped_arrays, str(tmp_path / "a.npy")
        )
        column[0] = 9
        assert records[0].b == 9 and type(records) is numpy.recarray
        assert type(fixed) is type(part) is numpy.memmap and not fixed.flags.writeable
        changeable[2] = values[3] = -1
        assert part[0] == -1 and fixed[2] == 2 and numpy.load(tmp_path / "a.npy")[2] == 2
        assert masked[3] == -1 and masked.fill_value == 7 and masked.mask.sum() == 20_000 - 6


def test_torchscript_lies_in_the_cache() -> None:
    made, expected, x = share.load(sharing.Scripted), sharing.Scripted(), torch.randn(3, 64)
    assert torch.equal(made(x), expected(x)) and isinstance(made.inner, torch.jit.ScriptModule)
    assert made.inner.weight.requires_grad and not made.inner.training
    with torch.no_grad():
        made.inner.weight.zero_()
    assert torch.equal(share.load(sharing.Scripted)(x), expected(x))


def test_parameter_of_its_own_class_keeps_class_and_state() -> None:
    made = share.load(sharing.quantized)
    weight = made[0].weight
    assert type(weight) is sharing.Quantized and weight.dtype is torch.int8 and not weight.requires_grad
    assert (weight.scale, weight.module, made[0].tied) == (2, made[0], weight)
    assert torch.equal(weight.state["codes"], torch.arange(16.0))
    weight.data.zero_()  # of this process only
    assert share.load(sharing.quantized)[0].weight.data.unique().tolist() == [2]


def test_replaced_methods_and_hooks_refer_to_the_result() -> None:
    for make in (sharing.with_bound_forward, sharing.with_wrapped_forward):
        found = share.load(make)
        assert torch.equal(found(torch.ones(2)), make()(torch.ones(2)))
        assert getattr(found.forward, "__wrapped__", found.forward).__self__ is found
    module = share.load(sharing.Scaled)
    (hook,) = module.inner._forward_hooks.values()
    assert hook.__closure__[0].cell_contents is module
    module.scale.fill_(10)
    assert torch.equal(module.inner(torch.zeros(1, 2)), 10 * module.inner.bias[None]) and module.calls == [1]


def test_nested_functions_are_those_of_their_module() -> None:
    for _ in range(2):
        tensor, cached, factorial, scaled, unassigned, lock = share.load(sharing.nested_functions)
        assert cached() is tensor and cached.cache_parameters()["maxsize"] == 7 and factorial(5) == 120
        sharing.FACTOR = 5
        tensor[0] = 3
        assert scaled(1).tolist() == [15, 5] and scaled.__doc__ == "Scale."
        assert scaled.__qualname__.endswith("<locals>.scaled") and scaled.__kwdefaults__ == {"by": tensor}
        sharing.FACTOR = 2
        with pytest.raises(NameError):
            unassigned()
        assert lock.acquire(blocking=False)


def test_methods_of_nested_classes_are_those_of_their_module() -> None:
    module = share.load(sharing.of_a_nested_class)
    assert (module(1), module.factor, module.named()) == (2, 2, (2, "Scaled", "Scaled"))
    sharing.FACTOR = 5
    try:
        assert module(1) == 5
    finally:
        sharing.FACTOR = 2


def test_weak_references_refer_to_the_result() -> None:
    family = share.load(sharing.Family)
    proxy, reference = family.child.parent, family.child.reference
    family.number = 2
    assert type(proxy) is weakref.CallableProxyType and proxy.number == 2
    assert reference() is family and family.gone() is None


def test_functions_by_value_need_dill(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offset, arrays = 3, [numpy.arange(5000.0) * n for n in range(3)]

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + offset

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "dill", None)
        assert share.load(lambda: 5) == 5
        assert "dill" in caplog.text and not sharing.entries()
    pytest.importorskip("dill")
    assert share.load(shifted, torch.ones(2)).tolist() == [4, 4]
    assert share.load(lambda: [lambda y: y * offset])[0](5) == 15
    found = share.load(lambda: [arrays[0], os, arrays[1], arrays[2]])
    assert found[1] is os and all(map(numpy.array_equal, (found[0], *found[2:]), arrays))


def test_result_that_belongs_to_its_process_is_plain(caplog: pytest.LogCaptureFixture) -> None:
    for make in (sharing.computed, sharing.generator, *[sharing.named] * hasattr(torch.Tensor, "names")):
        caplog.clear()
        assert type(share.load(make)) is type(make())
        assert [record.levelname for record in caplog.records] == ["WARNING"] and not sharing.entries()
    # The effects of module.compile() and torch.compile(function), without importing the compiler for seconds.
    in_place, function = torch.nn.Linear(2, 2), lambda x: x
    assert custom_reducers.reduced(in_place) is custom_reducers.reduced(function) is NotImplemented
    in_place._compiled_call_impl = function._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
    for compiled in (in_place, function):
        assert share.load(sharing.itself, compiled) is compiled
        assert "torch.compile belongs to its process; share the module" in caplog.text


def test_argument_that_belongs_to_its_process_is_passed_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("0123456789")
    for mode in ("r", "rb"):
        with (tmp_path / "a.txt").open(mode) as file:
            file.read(3)
            assert share.load(sharing.itself, file) is file
            assert "belongs to its process: pass its path" in caplog.text and file.tell() == 3
    assert share.load(repr, sharing.Refusing()).startswith("<sharing.Refusing")
    with pytest.raises(TypeError, match="'int' object is not callable"):
        share.load(5)


# ------------------------------------------------------------------------------------- memory


def test_weights_of_a_file_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"weight": torch.arange(1e6), "bias": torch.ones(5)}, path)
    age(path)
    for load in (zerocopy.load, torch.load):
        for _ in range(2):
            found = share.load(load, str(path))
            assert torch.equal(found["weight"], torch.arange(1e6))
            assert any(line.endswith(f" {path}") for line in mappings())
            found["weight"].zero_()
    assert bytes_written() < 100_000
    assert torch.equal(torch.load(path)["weight"], torch.arange(1e6))


def test_status_lists_results_and_unload_removes_them(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(100_000)}, tmp_path / "w.pt")
    age(tmp_path / "w.pt")
    kept = share.load(torch.load, str(tmp_path / "w.pt"))
    share.load(sharing.filled, 70_000, 9)
    by_name = {entry.what: entry for entry in sharing.entries()}
    loaded, filled = by_name["torch.serialization.load"], by_name["sharing.filled"]
    assert loaded.mapped >= 400_000 and loaded.written < 10_000
    assert filled.written > 70_000 and filled.mapped == 0 and filled.used >= loaded.used
    assert str(tmp_path / "w.pt") in loaded.depends_on
    assert share.unload(filled.key) == 1 and share.unload(filled.key) == 0
    assert share.unload(loaded.key[:6]) == 1 and share.unload("torch.serialization.load") == 0
    assert float(kept["w"].sum()) == 100_000
    for key in (None, 5, b"key", ["*"]):
        with pytest.raises(TypeError, match="expected a str as key"):
            share.unload(key)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- arguments that are results


def test_earlier_results_go_by_name() -> None:
    module, state = share.load(Module), share.load(sharing.itself, {"w": torch.arange(1e6)})
    before = bytes_written()
    listed = [module, state]
    made = share.load(sharing.box, module, listed, part=module)
    assert made.things[0] is module and made.named["part"] is module and made.things[1][0] is module
    assert listed[0] is module and len(listed) == 2 and torch.equal(made.things[1][1]["w"], state["w"])
    assert share.load(sharing.box, made, 1).things[0] is made
    assert bytes_written() - before < 100_000
    assert share.unload("sharing.Module") > 1, "results that refer to it go with it"
    forgotten = share.load(sharing.box, module, "forgotten")
    assert torch.equal(forgotten.things[0].first.weight, module.first.weight)


CHANGES: dict[str, Callable[[Any], object]] = {
    "parameter": lambda module: module.frozen.data.add_(5),
    "end of a tie": lambda module: setattr(
        module.second, "weight", torch.nn.Parameter(module.first.weight.data + 0)
    ),
    "tie": lambda module: setattr(module.second, "bias", module.first.bias),
    "attribute": lambda module: module.note.update(name="another"),
    "flag": lambda module: module.frozen.requires_grad_(),
}


def pass_as_argument() -> None:
    module = share.load(Module)
    assert share.load(sharing.box, module).things[0] is module


@pytest.mark.parametrize("change", CHANGES)
def test_result_that_was_changed_is_not_taken_for_an_earlier_result(change: str) -> None:
    in_another_process(pass_as_argument)
    module = share.load(Module)
    CHANGES[change](module)
    found = share.load(sharing.box, module).things[0]
    assert found is not module and found.note == module.note
    assert found.frozen.tolist() == module.frozen.tolist()
    assert found.frozen.requires_grad == module.frozen.requires_grad
    for one, other in (("first.weight", "second.weight"), ("first.bias", "second.bias")):
        tied = [made.get_parameter(one) is made.get_parameter(other) for made in (found, module)]
        assert tied[0] == tied[1]
    pass_as_argument()


def test_call_that_changes_an_earlier_result_has_a_copy_of_it() -> None:
    module = share.load(Module)
    assert share.load(sharing.changed_box, module).things[0].frozen.tolist() == [2, 2, 2]
    again = share.load(Module)
    made = share.load(sharing.changed_box, again).things[0]
    assert made is not again and made.frozen.tolist() == [2, 2, 2] and again.frozen.tolist() == [1, 1, 1]


def test_results_that_are_tied_stay_tied_as_arguments() -> None:
    one, other = share.load(sharing.a_module, 1), share.load(sharing.a_module, 2)
    assert share.load(sharing.box, one, torch.ones(3)).things[0] is one
    both = share.load(sharing.box, one, one[0])
    assert both.things[0][0] is both.things[1]
    other[0].weight = one[0].weight
    both = share.load(sharing.box, one, other)
    assert both.things[0][0].weight is both.things[1][0].weight
    assert both.things[0][0].bias is not both.things[1][0].bias


def test_earlier_result_whose_file_was_replaced_goes_by_value(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save(torch.ones(2000), path)
    age(path)
    earlier = share.load(torch.load, path)
    torch.save(torch.zeros(2000), tmp_path / "other.pt")
    (tmp_path / "other.pt").rename(path)
    age(path)
    for _ in range(2):
        assert share.load(sharing.summed, earlier) == 2000
        assert share.load(torch.load, path).sum() == 0


# ------------------------------------------------------------------------------------- one call, one result


def test_calls_that_mean_the_same_are_computed_once(tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")  # as bytes: a file that is named counts
    values = [share.load(sharing.counted, log, value) for value in ({"1", "2"}, {"2", "1"})]
    assert sharing.calls_in(tmp_path / "log") == 1 and all(value["value"] == {"1", "2"} for value in values)
    share.load(sharing.counted, log, {"1", "3"})
    share.load(sharing.counted, log, frozenset({"1", "2"}))
    assert sharing.calls_in(tmp_path / "log") == 3
    entry = next(entry for entry in os.scandir(tmp_path) if entry.name == "log")
    assert share.load(os.path.getsize, entry) == share.load(os.path.getsize, entry.path)


def test_call_that_many_ask_for_at_once_is_computed_once(tmp_path: Path) -> None:
    results: list[Any] = []
    log = os.fsencode(tmp_path / "log")
    load = lambda: results.append(share.load(sharing.counted, log, 1, 0.3))  # noqa: E731
    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and sharing.calls_in(tmp_path / "log") == 1
    results[0]["tensor"].zero_()
    assert torch.equal(results[1]["tensor"], torch.arange(1000.0))


def test_arguments_reach_the_function_unchanged(tmp_path: Path) -> None:
    def open_ended(first: int, second: float = 0.0, *others: int, **named: int) -> Any:
        return first, math.copysign(1, second), others, named

    @functools.wraps(open_ended)
    def by_keywords(**named: Any) -> Any:
        return open_ended(**named)

    assert share.load(sharing.told, 0, 1, 2, 3) == ((0, 1, 2, 3), {})
    assert share.load(sharing.told, 0, first=1, second=2) == ((0,), {"first": 1, "second": 2})
    path = sharing.TwoParts(tmp_path, "file")
    for content in ("content", "other"):
        (tmp_path / "file").write_text(content)
        found, text = share.load(sharing.read_at, path)
        assert type(found) is sharing.TwoParts and vars(found) == vars(path) and text == content
    pytest.importorskip("dill")
    assert share.load(open_ended, 0, 0.0, 2, 3) == open_ended(0, 0.0, 2, 3)
    assert share.load(open_ended, 0, -0.0, third=3) == open_ended(0, -0.0, third=3)
    assert share.load(by_keywords, first=1, second=-1.0) == open_ended(1, -1.0)


def test_result_can_be_shared_by_forked_children_and_within_a_call(tmp_path: Path) -> None:
    tensor = share.load(sharing.filled, 5000, 3)

    def load() -> None:
        assert torch.equal(share.load(sharing.filled, 5000, 3), tensor)

    in_another_process(load)
    load()
    assert share.load(sharing.nested, os.fsencode(tmp_path / "log"))["tensor"].numel() == 1000


# ------------------------------------------------------------------------------------- freshness


def written(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def rewritten(folder: Path) -> None:
    """Write other bytes to a file of the same size, and set its times back."""
    times = (folder / "a").stat()
    (folder / "a").write_text("2")
    os.utime(folder / "a", ns=(times.st_atime_ns, times.st_mtime_ns))


def replaced(folder: Path) -> None:
    (folder / "b").write_text("2")
    (folder / "b").rename(folder / "a")


def become_link(folder: Path) -> None:
    (folder / "a").rename(folder / "b")
    (folder / "a").symlink_to("b")


def number(value: int) -> Callable[[Path], None]:
    def store(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "a")) as connection:
            connection.execute("PRAGMA journal_mode=WAL" if value == 3 else "PRAGMA journal_mode=DELETE")
            connection.execute("CREATE TABLE IF NOT EXISTS numbers (value)")
            connection.execute("INSERT INTO numbers VALUES (?)", (value,))
            connection.commit()

    return store


def two_files(folder: Path) -> None:
    (folder / "a0").write_text("0")
    (folder / "a1").write_text("1")


class Way(NamedTuple):
    """A function, what is there before, and a change after which it returns something else."""

    function: Callable[[str], Any]
    before: Callable[[Path], object]
    change: Callable[[Path], object]


A, LATE = written("a", "1"), written("late", "1")
WAYS = {
    "rewritten": Way(sources.text, A, rewritten),
    "replaced": Way(sources.text, A, replaced),
    "removed from a listing": Way(sources.newest, two_files, lambda folder: (folder / "a1").unlink()),
    "renamed in a listing": Way(
        sources.newest, two_files, lambda folder: (folder / "a1").rename(folder / "a7")
    ),
    "exists": Way(sources.exists, A, LATE),
    "access": Way(sources.may_read, A, LATE),
    "becomes a link": Way(sources.is_link, A, become_link),
    "sqlite with a log": Way(sources.database, number(1), number(3)),
    "own files beside": Way(sources.with_scratch, A, rewritten),
    "link of its own": Way(sources.through_own_link, A, rewritten),
    "renamed meanwhile": Way(sources.renamed_meanwhile, A, rewritten),
}


def hidden(folder: Path) -> str:
    """Return a folder without its first slash: so no argument names a file."""
    return str(folder)[1:]


@pytest.mark.parametrize("way", WAYS)
def test_changed_source_makes_a_new_result(tmp_path: Path, way: str) -> None:
    function, before, change = WAYS[way]
    before(tmp_path)
    age(tmp_path)
    first = share.load(function, hidden(tmp_path))
    if way not in ("renamed meanwhile", "link of its own"):
        (entry,) = sharing.entries()
        assert share.load(function, hidden(tmp_path)) == first and entry.unseen == []
        assert len(sharing.entries()) == 1
    change(tmp_path)
    age(tmp_path)
    second = share.load(function, hidden(tmp_path))
    assert second != first and second == share.load(function, hidden(tmp_path))


def test_times_of_a_listed_folder_do_not_count(tmp_path: Path) -> None:
    two_files(tmp_path)
    age(tmp_path)
    first = share.load(sources.newest, hidden(tmp_path))
    taken = [entry.seconds for entry in sharing.entries()]
    (tmp_path / "a7").touch()
    (tmp_path / "a7").unlink()
    (tmp_path / "__pycache__").mkdir()
    assert share.load(sources.newest, hidden(tmp_path)) == first
    assert [entry.seconds for entry in sharing.entries()] == taken, "the function was not called again"


@pytest.mark.parametrize("function", [sources.by_libc, sources.by_stdio])
def test_file_that_native_code_opens_in_a_folder_that_is_named_counts(
    tmp_path: Path, function: Callable[[str], bytes]
) -> None:
    (tmp_path / "a").write_text("1")
    age(tmp_path / "a")
    assert share.load(function, str(tmp_path)) == share.load(function, str(tmp_path)) == b"1"
    assert len(sharing.entries()) == 1
    rewritten(tmp_path)
    age(tmp_path / "a")
    assert share.load(function, str(tmp_path)) == b"2"


def test_file_that_changes_during_the_call_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    age(tmp_path / "a")

    def change(_: Any) -> None:
        in_another_process(lambda: (tmp_path / "a").write_text("22"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "meanwhile", change, raising=False)
        assert share.load(sources.text_and_meanwhile, hidden(tmp_path)) == "1"
    assert sharing.entries() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "clock_gettime_ns", lambda _: 0)
        assert share.load(sources.text, hidden(tmp_path)) == "22"
        assert sharing.entries() == [], "it could change again within one tick of the clock"


def test_files_that_do_not_count_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
    age(tmp_path / "a.tar")
    for _ in range(2):
        assert share.load(sources.extracted, hidden(tmp_path)) == "11"
        assert share.load(sources.text, hidden(tmp_path)) == "1"
        assert share.load(sources.text, str(tmp_path)) == "1"
        for name in ("unrelated.safetensors", "b.py", "a.txt"):
            (tmp_path / name).write_text(str(time.time()))
    assert len(sharing.entries()) == 3


def test_call_that_cannot_be_followed_is_marked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    age(tmp_path / "a")
    functions = sources.program, sources.shell, sources.network, sources.in_child, sources.machine
    for function in functions:
        share.load(function, hidden(tmp_path))
    unseen = {entry.what.partition(".")[2]: "".join(entry.unseen) for entry in sharing.entries()}
    assert "program" in unseen["program"] and "program" in unseen["shell"] and "network" in unseen["network"]
    assert "forked" in unseen["in_child"] and not unseen["machine"]
    (tmp_path / "a").write_text("2")
    assert share.load(sources.program, hidden(tmp_path)) == "1", "a documented limit"
    with share.options(unseen="refuse"):
        assert share.load(sources.program, hidden(tmp_path)) == "2"


@pytest.mark.parametrize(
    "name",
    [
        "variable",
        "variable_in_bytes",
        "variables",
        "variables_shown",
        "argument_found",
        "arguments_reversed",
        "folder_itself",
        "folder_listed",
        "folder_scanned",
        "relative",
    ],
)
def test_fact_of_the_process_that_a_call_reads_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    function = getattr(sources, name)
    (tmp_path / "here").write_text("here")
    monkeypatch.setattr(sys, "argv", ["first", "second"])
    results = []
    for change in (
        lambda: None,
        lambda: monkeypatch.setenv("ZC_TEST_VARIABLE", "1"),
        lambda: monkeypatch.setattr(sys, "argv", ["another", "first"]),
        lambda: monkeypatch.chdir(tmp_path),
    ):
        change()
        results.append(share.load(function, ""))
        assert results[-1] == function("")
    count = len(sharing.entries())
    assert share.load(function, "") == results[-1] and len(sharing.entries()) == count


def test_two_environments_in_turn_keep_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in "1", "2", "1", "2":
        monkeypatch.setenv("ZC_TEST_VARIABLE", value)
        monkeypatch.setenv("SSH_CLIENT", str(time.time()))
        monkeypatch.setenv("LOCAL_RANK", str(time.time()))
        assert share.load(sources.variable, "") == value
        assert share.load(sharing.filled, 10).numel() == 10
    assert len(sharing.entries()) == 4
    for value in "1", "2":
        monkeypatch.setenv("LOCAL_RANK", value)
        assert share.load(sources.rank, "") == value


def test_names_that_are_not_text(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/name\xff")
    for value in (1, 2):
        with open(path, "wb") as file:
            torch.save(torch.full((5000,), value), file)
        age(Path(path))
        assert share.load(torch.load, path)[0] == share.load(torch.load, path)[0] == value
    assert [path] in [entry.depends_on for entry in sharing.entries()]


# ------------------------------------------------------------------------------------- state of the caller


def seed(value: int) -> None:
    random.seed(value)
    numpy.random.seed(value)
    torch.manual_seed(value)


def test_explicit_load_with_other_seeds_is_computed_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zerocopy")
    seed(1)
    first = share.load(sharing.drawn, "torch")
    seed(2)
    before = torch.get_rng_state()
    assert share.load(sharing.drawn, "torch") == first and sharing.entries()[0].random == ["torch"]
    assert torch.equal(before, torch.get_rng_state())
    assert "share.options(generators=True)" in caplog.text


def test_generators_as_part_of_a_call() -> None:
    for generator, draw in sharing.DRAWS.items():
        for value in (1, 2, 1):
            seed(value)
            with share.options(generators=True):
                found = share.load(sharing.drawn, generator), draw()
            seed(value)
            assert found == (draw(), draw())
    for options, error in (
        ({"generators": 1}, TypeError),
        ({"unseen": "x"}, ValueError),
        ({"seed": 1}, TypeError),
    ):
        with pytest.raises(error):
            share.options(**options).__enter__()


def test_modes_are_those_of_the_caller() -> None:
    for mode in (contextlib.nullcontext, torch.no_grad, torch.inference_mode):
        with mode():
            assert share.load(sharing.modes) == sharing.modes()
            one, other = share.load(sharing.trainable), sharing.trainable()
            assert one.weight.requires_grad == other.weight.requires_grad
            assert one.weight.is_inference() == other.weight.is_inference()
    if torch.set_flush_denormal(True):  # which not every processor can
        try:
            assert share.load(sharing.doubled, 1e-42) == [0.0, 0.0]
        finally:
            torch.set_flush_denormal(False)
    assert share.load(sharing.doubled, 1e-42) != [0.0, 0.0]


@pytest.fixture
def patched(tmp_path: Path) -> Iterator[None]:
    """Have functions of `sharing` patched, as those of known libraries are."""
    names = ("drawn", "computed", "appended", "wrapped", "filled")
    (tmp_path / "share.cfg").write_text("\n".join(f"sharing::{name}" for name in names))
    share.patch_all(tmp_path / "share.cfg")
    yield
    share.unpatch_all()


@pytest.mark.usefixtures("patched")
def test_patched_call_that_only_the_program_can_make_is_made_here(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "zerocopy")
    for generator, draw in sharing.DRAWS.items():
        for value in (1, 2):
            seed(value)
            found = sharing.drawn(generator), draw()
            seed(value)
            assert found == (draw(), draw())
    lines = [record.getMessage() for record in caplog.records if "random numbers" in record.getMessage()]
    assert len(lines) == 6 and all(any(generator in line for line in lines) for generator in sharing.DRAWS)
    share.load(sharing.appended, [1, 2])
    for _ in range(2):
        items, tensor = [1, 2], torch.ones(3)
        assert sharing.appended(items) == 3 and items == [1, 2, 5]
        assert sharing.wrapped(tensor, "b")["tensor"] is tensor
        assert sharing.computed().grad_fn is not None
    assert "autograd computed" in caplog.text


@pytest.mark.usefixtures("patched")
def test_own_result_goes_by_its_entry_as_results_of_others_do() -> None:
    def program() -> None:
        tensor = sharing.filled(5000, 3)
        assert sharing.wrapped(tensor, "a")["tensor"] is tensor

    program()
    keys = {entry.key for entry in share.status()}
    in_another_process(program)
    assert {entry.key for entry in share.status()} == keys and len(keys) == 2


def test_saving_over_a_loaded_file_keeps_the_tensors(tmp_path: Path) -> None:
    path, original = tmp_path / "a.pt", torch.save
    torch.save({"weight": torch.ones(1 << 20)}, path)
    age(path)
    share.patch_all()
    state = torch.load(path)
    torch.save({"weight": torch.zeros(3)}, path)
    assert bool((state["weight"] == 1).all()) and torch.load(path)["weight"].numel() == 3
    assert {entry.what for entry in sharing.entries()} == {"torch.serialization.load"}
    share.unpatch_all()
    assert torch.save is torch.serialization.save is original


# ------------------------------------------------------------------------------------- what a call does beside


def test_exceptions_are_those_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        share.load(torch.load, str(tmp_path / "none.pt"))
    assert missing.value.filename == str(tmp_path / "none.pt") and missing.value.__cause__ is None
    with pytest.raises(sharing.OwnError, match="one two"):
        share.load(sharing.fail, sharing.OwnError, "one", "two")
    with pytest.raises(SystemExit):
        share.load(sharing.fail, SystemExit, 3)
    assert sharing.entries() == []


def test_warnings_and_log_records_are_said_again(caplog: pytest.LogCaptureFixture) -> None:
    said = []
    for _ in range(3):
        caplog.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert share.load(sources.talkative, "") == 1
        records = [
            (r.name, r.levelname, r.getMessage(), r.lineno) for r in caplog.records if r.name == "sources"
        ]
        said.append(([(w.category, str(w.message), w.filename, w.lineno) for w in caught], records))
    assert said[0] == said[1] == said[2] and len(said[0][0]) == 2 and len(said[0][1]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        with pytest.raises(DeprecationWarning, match="old"):
            share.load(sources.talkative, "")


def test_recording_leaves_the_process_as_it_was() -> None:
    def state() -> list[Any]:
        functions = [getattr(os, name) for name in ("stat", "lstat", "access", "readlink", "open", "getcwd")]
        others = [warnings.showwarning, logging.Logger.callHandlers, hash, torch.get_rng_state, sys.argv]
        return [*functions, *others, type(os.environ), list(sys.meta_path), RemovableHandle.next_id]

    before = state()
    share.load(sharing.filled, 5)
    with pytest.raises(ValueError, match="x"):
        share.load(sharing.fail, ValueError, "x")
    assert state() == before


def test_recordings_that_overlap_leave_the_functions_as_they_were() -> None:
    def functions() -> list[Any]:
        return [warnings.showwarning, logging.Logger.callHandlers, hash, torch.get_rng_state]

    before, recordings = functions(), [contextlib.ExitStack() for _ in range(2)]
    for stack in recordings:  # of two threads
        for part in (generators.Use(), Hashes(), Messages().heard()):
            stack.enter_context(part)
    assert functions() != before
    for stack in recordings:
        stack.close()
    assert functions() == before


def test_interrupted_load_leaves_nothing_open(tmp_path: Path) -> None:
    torch.save(torch.ones(1000), tmp_path / "a.pt")
    share.load(torch.load, str(tmp_path / "a.pt"))
    before, generator, count = sharing.descriptors_of(), random.Random(5), 0
    for _ in range(10):
        timer = threading.Timer(generator.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGINT))
        with contextlib.suppress(KeyboardInterrupt):
            timer.start()
            while True:
                share.load(torch.load, str(tmp_path / "a.pt"))
        timer.join()
        count += 1
    assert count == 10 and sharing.descriptors_of() <= before + 1


def test_run_with_share_serves_the_program(tmp_path: Path, forked: Child) -> None:
    torch.save({"w": torch.ones(5000)}, tmp_path / "a.pt")
    (tmp_path / "program.py").write_text(
        "import sys, torch\nprint(torch.load(sys.argv[1])['w'].sum().item())\n"
    )
    code = "import sys\nfrom zerocopy.__main__ import main\nmain(sys.argv[1:])"
    age(tmp_path / "a.pt")
    for is_second in (False, True):
        done = forked(code, "run", "-v", "--share", tmp_path / "program.py", tmp_path / "a.pt")
        assert done.stdout == "5000.0\n" and ("1 kept results" in done.stderr) == is_second, done.stderr
    (entry,) = sharing.entries()
    assert entry.what == "torch.serialization.load"
