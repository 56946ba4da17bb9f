"""zerocopy.share.load: the same objects as the call itself returns, shared, and no one's writes in another's."""

from __future__ import annotations

import collections
import datetime
import functools
import io
import math
import mmap
import os
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch
from conftest import Child, mappings
from equality import assert_same
from sharing import Box, Module

import zerocopy
from zerocopy import share
from zerocopy.share import ServerError
from zerocopy.share.client import result_references


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("share")) as place:
        yield place


def memory_in_use() -> int:
    status = share.status()
    assert status is not None
    return int(status["memory"])


# ------------------------------------------------------------------------------------- what comes back

BASE = torch.arange(2000.0)
PLAIN: dict[str, Any] = {
    "state dict": collections.OrderedDict(weight=BASE, tied=BASE[10:], bias=torch.ones(3)),
    "grad": [torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.ones(2)],
    "dtypes": [
        torch.ones(3, dtype=dtype) for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.complex64)
    ],
    "views": [
        BASE[::3],
        BASE.view(40, 50).t(),
        BASE[:0],
        torch.empty(0),
        BASE.view(2, 1000).expand(2, 2, 1000),
    ],
    "plain values": {"a": [1, 2.5, None, True, "text", (1, 2), {3, 4}, 10**30, 1j], 5: b"bytes"},
    "sparse": torch.sparse_coo_tensor(torch.tensor([[1, 1], [0, 2]]), torch.ones(2), (3, 3)),
    "meta": torch.ones(3, device="meta"),
    "scalar": torch.tensor(5),
    "number": 5,
    "none": None,
    "date": datetime.date(2020, 5, 6),
    "class": collections.Counter,
    "long bytes": {"a": b"x" * 100_000, "b": bytearray(b"y" * 100_000)},
    "deep": [[[[torch.ones(2)]]]],
}


@pytest.mark.parametrize("name", PLAIN)
def test_result_equals_the_return_value_of_the_call(name: str) -> None:
    wanted = PLAIN[name]
    for _ in range(2):
        found = share.load(sharing.box, wanted).things[0]
        assert_same(found, wanted)
    assert_same(share.load(_itself, wanted), wanted)


def _itself(thing: Any) -> Any:
    return thing


def test_ties_stay_ties() -> None:
    state = share.load(_itself, PLAIN["state dict"])
    state["weight"][10] = 77
    assert state["tied"][0] == 77
    floats, as_bytes = share.load(_itself, [BASE, BASE.view(torch.uint8)])
    floats[0] = 1.0
    assert as_bytes[:4].tolist() == [0, 0, 128, 63]


def test_a_module_is_whole() -> None:
    first, second = share.load(Module), share.load(Module)
    assert not first.training and first.second.weight is first.first.weight
    assert isinstance(first.frozen, torch.nn.Parameter) and not first.frozen.requires_grad
    assert first.first.weight.requires_grad and first.note == {"name": "model"}
    assert list(first.state_dict()) == list(Module().state_dict()) and "scratch" in dict(
        first.named_buffers()
    )
    x = torch.ones(2, 40)
    assert torch.equal(first(x), second(x)) and torch.equal(first(x), 2 * first.forward(x))
    first(x).sum().backward()
    assert first.first.weight.grad is not None and second.first.weight.grad is None
    torch.optim.SGD(first.parameters(), 0.1).step()
    assert not torch.equal(first.first.weight, second.first.weight)
    assert torch.equal(second.first.weight, share.load(Module).first.weight)


def test_write_to_a_result_is_private() -> None:
    first, second = share.load(_itself, BASE), share.load(_itself, BASE)
    first.add_(1)
    assert torch.equal(second, BASE) and torch.equal(share.load(_itself, BASE), BASE)
    other = sharing.client(
        "import sharing, sys, torch\nfrom zerocopy import share\nfrom test_share import _itself, BASE\n"
        "found = share.load(_itself, BASE)\nassert torch.equal(found, BASE)\nfound.zero_()"
    )
    assert other.wait(180) == 0, other.communicate()[1]
    assert torch.equal(first, BASE + 1) and torch.equal(second, BASE)


def test_memoryviews_and_arrays_are_shared() -> None:
    numpy = pytest.importorskip("numpy")
    content = bytes(range(256)) * 400
    for view in (
        memoryview(content),
        memoryview(bytearray(content)),
        memoryview(content).cast("I", (160, 160)),
    ):
        found = share.load(_view_of, bytes(view), view.format, list(view.shape), view.readonly)
        assert found == view and (found.format, found.shape, found.readonly) == (
            view.format,
            view.shape,
            view.readonly,
        )
    array = numpy.arange(50_000.0)
    found, again = share.load(_itself, array), share.load(_itself, array)
    assert numpy.array_equal(found, array)
    found[:] = 0
    assert numpy.array_equal(again, array)


def _view_of(content: bytes, format: str, shape: list[int], readonly: bool) -> memoryview:
    view = memoryview(content if readonly else bytearray(content))
    return view if format == "B" else view.cast(format, shape)  # type: ignore[call-overload]


def test_memoryviews_of_unusual_formats_are_refused() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(zerocopy.UnsupportedError, match="Zd"):
        share.load(_itself, memoryview(numpy.zeros(1000, dtype="c16")))
    parts = [torch.ones(2), torch.arange(3.0)]
    if torch.__version__ < "2":
        pytest.skip("this torch cannot pickle nested tensors")
    nested = share.load(_itself, {"a": torch.nested.nested_tensor(parts)})["a"]
    assert nested.is_nested and all(map(torch.equal, nested.unbind(), parts))


def _gradient_hook(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 0


def _with_extras() -> dict[str, Any]:
    pair = torch.tensor([1 + 2j, 3 - 4j])
    found: dict[str, Any] = {
        "conj": pair.conj(),
        "neg": pair.conj().imag,
        "both": torch.nn.Parameter(torch._neg_view(pair.conj())),
        "attributes": torch.ones(2),
        "hooked": torch.nn.Linear(2, 1, bias=False),
        "tie": pair,
    }
    found["attributes"].itself = [found["attributes"], "a note"]
    found["hooked"].weight.register_hook(_gradient_hook)
    return found


def test_tensors_that_are_more_than_their_elements() -> None:
    wanted = _with_extras()
    for found in share.load(_with_extras), share.load(_with_extras), share.load(_itself, wanted):
        for name in ("conj", "neg", "both"):
            assert torch.equal(found[name], wanted[name]) and type(found[name]) is type(wanted[name])
            assert (found[name].is_conj(), found[name].is_neg()) == (
                wanted[name].is_conj(),
                wanted[name].is_neg(),
            )
        assert found["both"].requires_grad and found["both"].is_leaf
        assert found["attributes"].itself == [found["attributes"], "a note"]
        found["hooked"](torch.ones(1, 2)).sum().backward()
        assert found["hooked"].weight.grad.tolist() == [[0, 0]]
        found["tie"].zero_()
        assert found["conj"].abs().sum() == 0
    box = share.load(sharing.box, share.load(_with_extras))
    assert share.load(sharing.box, box).things[0] is box
    box.things[0]["attributes"].itself = None
    assert share.load(sharing.box, box).things[0] is not box


def test_hooks_beside_those_of_a_result() -> None:
    module = share.load(Module)
    module.register_forward_hook(lambda module, args, output: output + 10)
    x = torch.ones(1, 40)
    assert torch.equal(module(x), module.forward(x) * 2 + 10)


def test_dtypes_that_torch_cannot_pickle_are_unsupported() -> None:
    refused = 0
    for name in ("complex32", "uint4"):
        try:
            torch.save(_of_dtype(name), io.BytesIO())
        except (KeyError, AttributeError):  # the latter: the dtype does not exist
            refused += 1
            with pytest.raises(
                zerocopy.UnsupportedError if hasattr(torch, name) else AttributeError, match=name
            ):
                share.load(_of_dtype, name)
    assert refused


def _of_dtype(name: str) -> torch.Tensor:
    return torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name))


@pytest.mark.parametrize("thing", [None, "torch.load", 5])
def test_load_of_a_non_callable_raises_type_error(thing: Any) -> None:
    with pytest.raises(TypeError, match=f"'{type(thing).__name__}' object is not callable"):
        share.load(thing)


def test_paths_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    path = sharing.TwoParts(tmp_path, "file")
    for content in ("content", "other"):
        (tmp_path / "file").write_text(content)
        found, said = share.load(sharing.read_at, path)
        assert type(found) is sharing.TwoParts and vars(found) == vars(path) and said == content


def test_functions_by_value() -> None:
    pytest.importorskip("dill")
    offset = 3

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + offset

    assert share.load(shifted, torch.ones(2)).tolist() == [4, 4]
    assert share.load(lambda: [lambda y: y * offset])[0](5) == 15
    # A class of __main__ comes back as the program's own.
    program = sharing.client(
        "from zerocopy import share\nclass Net:\n    def __init__(self, n): self.n = n\n"
        "def build(n): return Net(n)\n"
        "assert type(share.load(build, 3)) is Net and share.load(Net, 4).n == 4"
    )
    assert program.wait(180) == 0, program.communicate()[1]


def test_without_dill_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dill", None)
    with pytest.raises(zerocopy.UnsupportedError, match="dill"):
        share.load(lambda: 5)


def test_calls_that_mean_the_same_are_one(tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")  # as bytes: a file that is named counts
    values = [share.load(sharing.counted, log, {"1", "2"}) for _ in range(2)]
    values.append(share.load(sharing.counted, log=log, value={"2", "1"}))
    values.append(share.load(sharing.counted, log, {"1", "2"}, 0.0))
    assert sharing.calls_in(tmp_path / "log") == 1 and all(value["value"] == {"1", "2"} for value in values)
    entry = next(entry for entry in os.scandir(tmp_path) if entry.name == "log")
    assert share.load(os.path.getsize, entry) == share.load(os.path.getsize, entry.path)
    share.load(sharing.counted, log, {"1", "3"})
    share.load(sharing.counted, log, frozenset({"1", "2"}))
    assert sharing.calls_in(tmp_path / "log") == 3


def test_arguments_reach_the_function_unchanged() -> None:
    def open_ended(first: int, second: float = 0.0, *others: int, **named: int) -> Any:
        return first, math.copysign(1, second), others, named

    @functools.wraps(open_ended)
    def by_keywords(**named: Any) -> Any:
        return open_ended(**named)

    assert share.load(sharing.told, 0, 1, 2, 3) == ((0, 1, 2, 3), {})
    assert share.load(sharing.told, 0, first=1, second=2) == ((0,), {"first": 1, "second": 2})
    pytest.importorskip("dill")
    assert share.load(open_ended, 0, 0.0, 2, 3) == open_ended(0, 0.0, 2, 3)
    assert share.load(open_ended, 0, -0.0, third=3) == open_ended(0, -0.0, third=3)
    assert share.load(by_keywords, first=1, second=-1.0) == open_ended(1, -1.0)


def test_modules_of_one_name_are_two(tmp_path: Path) -> None:
    """As what a function is made of, too."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module_of_two.py").write_text(f"def told(n): return {name!r}")
        program = sharing.client(
            "import functools, sys; sys.path.insert(0, sys.argv[1]); import module_of_two\n"
            "from zerocopy import share\n"
            "print(share.load(functools.partial(module_of_two.told, 3)))",
            tmp_path / name,
        )
        assert program.communicate(timeout=180)[0] == f"{name}\n"


def test_the_loader_gets_the_safetensors_of_the_clients_path(tmp_path: Path) -> None:
    """Not the one that the server has imported to be quick."""
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("def safe_open(*args): raise OSError")
    (package / "torch.py").write_text(
        "from safetensors import safe_open\n"
        "def load_file(path, device='cpu'): return f'{__file__} loads {path}'"
    )
    (tmp_path / "loader_of_that.py").write_text(
        "import safetensors.torch\nload = safetensors.torch.load_file"
    )
    program = sharing.client(
        "import sys; sys.path.insert(0, sys.argv[1]); import loader_of_that\n"
        "from zerocopy import share\n"
        "print(share.load(loader_of_that.load, 'x'))",
        tmp_path,
    )
    assert program.communicate(timeout=180)[0] == f"{package}/torch.py loads x\n"


def test_buffers_of_objects_that_need_dill_are_shared() -> None:
    pytest.importorskip("dill")
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.arange(5000.0) * n for n in range(3)]
    found = share.load(lambda: [arrays[0], os, arrays[1], arrays[2]])
    assert found[1] is os and all(map(numpy.array_equal, (found[0], *found[2:]), arrays))


# -------------------------------------------------------------------------------------------- sharing


def test_weights_of_a_file_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"weight": torch.arange(1e6), "bias": torch.ones(5)}, path)
    before = memory_in_use()
    for load in (zerocopy.load, torch.load):
        found = share.load(load, str(path))
        assert torch.equal(found["weight"], torch.arange(1e6))
        assert any(line.endswith(f" {path}") for line in mappings())
        found["weight"].zero_()
    assert memory_in_use() - before < 100_000
    assert torch.equal(torch.load(path)["weight"], torch.arange(1e6))


def test_the_same_bytes_are_kept_once() -> None:
    share.load(sharing.filled, 3_000_000, 5)
    before = memory_in_use()
    assert torch.equal(share.load(_twice, 3_000_000, 5)[1], torch.full((3_000_000,), 5, dtype=torch.uint8))
    assert memory_in_use() - before < 100_000


def _twice(size: int, value: int) -> list[torch.Tensor]:
    return [sharing.filled(size, value), sharing.filled(size, value)]


def test_memory_is_sealed(server: Path) -> None:
    share.load(sharing.filled, 100_000, 1)
    status = share.status()
    assert status is not None
    connection = sharing.connected(server)
    frames = pytest.importorskip("zerocopy.share.wire.frames")
    key = next(e["key"] for e in status["entries"] if e["memory"] > 100_000)
    frames.send(connection, sharing.load_request(key))
    answer = frames.receive(connection)
    memory, lease = answer.descriptors[0], answer.descriptors[-1]
    before = os.pread(memory, 1000, 0)
    for attempt in (
        lambda: os.pwrite(memory, b"EVIL", 0),
        lambda: os.ftruncate(memory, 0),
        lambda: os.posix_fallocate(memory, 0, 1 << 30),
        lambda: mmap.mmap(memory, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: os.write(os.open(f"/proc/self/fd/{memory}", os.O_RDWR), b"EVIL"),
    ):
        with pytest.raises(PermissionError):
            attempt()
    assert os.pread(memory, 1000, 0) == before and lease != memory
    answer.close()
    connection.close()


def test_number_of_descriptors_does_not_grow_with_tensors(tmp_path: Path) -> None:
    state = {str(n): torch.full((3,), float(n)) for n in range(3000)}
    torch.save(state, tmp_path / "many.pt")
    before = sharing.descriptors_of()
    found = share.load(torch.load, str(tmp_path / "many.pt"))
    assert sharing.descriptors_of() - before <= 4
    assert_same(found, state)


# ----------------------------------------------------------------------------------------- references


def test_earlier_results_go_by_name(tmp_path: Path) -> None:
    module, state = share.load(Module), share.load(_itself, {"w": torch.arange(1e6)})
    before = memory_in_use()
    listed = [module, state]
    made = share.load(sharing.box, module, listed, part=module)
    assert made.things[0] is module and made.named["part"] is module and made.things[1][0] is module
    assert listed[0] is module and len(listed) == 2
    assert torch.equal(made.things[1][1]["w"], state["w"])
    # The result of another call with a result that has a result in it.
    outer = share.load(sharing.box, made, 1)
    assert outer.things[0] is made
    assert memory_in_use() - before < 100_000
    assert share.load(sharing.box, module, listed, part=module).things[0] is module


def test_memory_of_results_that_are_gone_is_forgotten() -> None:
    share.load(sharing.filled, 5000, 200)
    state, module = share.load(_itself, {"w": torch.arange(1e6)}), share.load(Module)
    assert share.load(sharing.box, module).things[0] is module
    for value in range(150):
        share.load(sharing.filled, 5000, value)
    assert len(result_references._memory) <= 100  # nothing that a user sees tells
    before = memory_in_use()
    assert torch.equal(share.load(sharing.box, [state]).things[0][0]["w"], state["w"])
    assert share.load(sharing.box, module, 1).things[0] is module
    assert memory_in_use() - before < 100_000


def test_an_argument_that_was_changed_is_no_earlier_result() -> None:
    module = share.load(Module)
    assert share.load(sharing.box, module).things[0] is module
    with torch.no_grad():
        module.frozen.add_(5)
    made = share.load(sharing.box, module).things[0]
    assert made is not module and made.frozen.tolist() == [6, 6, 6]
    other = share.load(Module)
    other.note["name"] = "another"
    assert share.load(sharing.box, other).things[0].note == {"name": "another"}
    assert share.load(Module).frozen.tolist() == [1, 1, 1]


def test_a_call_that_changes_its_argument() -> None:
    module = share.load(Module)
    made = share.load(sharing.changed_box, module).things[0]
    assert made is not module and made.frozen.tolist() == [2, 2, 2] and module.frozen.tolist() == [1, 1, 1]


def test_a_reference_that_the_server_has_forgotten() -> None:
    module = share.load(Module)
    assert share.unload("*") > 0
    made = share.load(sharing.box, module, "forgotten")
    assert torch.equal(made.things[0].first.weight, module.first.weight)


# ------------------------------------------------------------------------------------- truth


def rewritten(path: Path, value: float) -> None:
    """Write other bytes to a file of the same size, and set its times back."""
    times = path.stat() if path.exists() else None
    torch.save({"weight": torch.full((1000,), value)}, path)
    if times is not None:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_files_that_only_the_function_names(tmp_path: Path) -> None:
    pytest.importorskip("dill")
    shared = Path("/dev/shm") / f"zerocopy-test-{os.getpid()}"
    late = str(tmp_path / "late").encode()

    def read() -> list[str]:
        found = []
        for path in (shared, late):
            try:
                found.append(Path(os.fsdecode(path)).read_text())
            except FileNotFoundError:
                found.append("none")
        return found

    try:
        shared.write_text("1")
        assert share.load(read) == share.load(read) == ["1", "none"]
        Path(os.fsdecode(late)).write_text("2")
        assert share.load(read) == ["1", "2"]
        shared.write_text("3")
        assert share.load(read) == ["3", "2"]
    finally:
        shared.unlink()


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/name\xff")
    for value in (1, 2):
        with open(path, "wb") as file:  # noqa: PTH123
            torch.save(torch.full((5000,), value), file)
        assert share.load(torch.load, path)[0] == share.load(torch.load, path)[0] == value
    assert [path] in [entry["files"] for entry in sharing.entries()]


@pytest.mark.parametrize("how", ["argument", "inside", "folder"])
def test_a_rewritten_file_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "w.pt"
    call: dict[str, tuple[Any, ...]] = {
        "argument": (sharing.sum_of_file, str(path)),
        "inside": (_sum_inside, [str(path)[:3], str(path)[3:]]),
        "folder": (_sum_in_folder, tmp_path),
    }
    rewritten(path, 1.0)
    assert share.load(*call[how]) == 1000 and share.load(*call[how]) == 1000
    size = path.stat().st_size
    rewritten(path, 2.0)
    assert path.stat().st_size == size
    assert share.load(*call[how]) == 2000


def _sum_inside(pieces: list[str]) -> torch.Tensor:
    return sharing.sum_of_file("".join(pieces))


def _sum_in_folder(folder: Path) -> torch.Tensor:
    return sharing.sum_of_file(str(folder / "w.pt"))


def test_a_relative_path_is_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        rewritten(tmp_path / name / "w.pt", value)
    for _ in range(2):
        for name, wanted in (("a", 1000), ("b", 2000)):
            monkeypatch.chdir(tmp_path / name)
            assert share.load(sharing.sum_of_file, "w.pt") == wanted
            assert share.load(_relative) == wanted


def _relative() -> torch.Tensor:
    return sharing.sum_of_file("".join(["w", ".pt"]))


def test_settings_of_torch_count() -> None:
    for dtype in (torch.float64, torch.float32):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            assert share.load(torch.ones, 3).dtype == dtype
        finally:
            torch.set_default_dtype(before)


def test_the_loader_is_where_its_client_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEROCOPY_TEST_VARIABLE", "here")
    assert share.load(sharing.where_am_i) == (str(tmp_path), "here")


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_worker_has_the_umask_processors_and_limits_of_its_client(
    tmp_path: Path, child: Child, umask: int
) -> None:
    """Also where the server was started by another program."""
    ended = child(
        """
        import os, resource, sharing, sys
        from zerocopy import share
        os.umask(int(sys.argv[2]))
        os.nice(1)
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
        folder = sys.argv[1].encode()
        assert share.load(sharing.attributes, folder) == sharing.attributes(folder)
        """,
        tmp_path,
        umask,
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert ended.returncode == 0, ended.stderr


# ------------------------------------------------------------------------------------- what fails


def test_exceptions_in_a_group_are_the_loaders_own() -> None:
    with pytest.raises(ExceptionGroup, match="several") as raised:
        share.load(sharing.fail_in_a_group)
    (within,) = raised.value.exceptions
    assert type(within) is sharing.WithTwoArguments and within.first == 1 and str(within) == "1 and 2"


def test_exceptions_are_the_loaders_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        share.load(torch.load, str(tmp_path / "none.pt"))
    assert missing.value.filename == str(tmp_path / "none.pt")
    assert "Traceback" in str(missing.value.__cause__) and "none.pt" in str(missing.value.__cause__)
    with pytest.raises(ZeroDivisionError, match="by hand"):
        share.load(sharing.fail, ZeroDivisionError, "by hand")
    with pytest.raises(sharing.OwnError, match="one two") as own:
        share.load(sharing.fail, sharing.OwnError, "one", "two")
    assert own.value.args == ("one two",) and own.value.second == "two"
    with pytest.raises(AttributeError, match="no_such_function") as unknown:
        share.load(getattr, sharing, "no_such_function")
    assert unknown.value.name == "no_such_function"
    with pytest.raises(urllib.error.HTTPError) as refused:
        share.load(sharing.fail, urllib.error.HTTPError, "u", 404, "not found", {}, None)
    assert refused.value.filename == refused.value.url == "u"
    with pytest.raises(ServerError, match="SystemExit"):
        share.load(sharing.fail, SystemExit, 3)
    for call in ((_generator,), (repr, _Refusing())):
        with pytest.raises(zerocopy.UnsupportedError, match="can be pickled"):
            share.load(*call)


def _generator() -> Any:
    return (n for n in range(3))


class _Refusing:
    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


def test_loaders_that_misbehave(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match="killed by signal 9"):
        share.load(sharing.kill_own_process)
    with pytest.raises(ServerError, match="status 5"):
        share.load(sharing.leave, 5)
    with pytest.raises(ServerError, match="cannot be published"):
        share.load(sharing.filled_without_memory, 1_000_000)
    assert share.load(sharing.print_a_lot) == 7
    pid = share.load(sharing.fork_and_return, 600.0)
    sharing.wait_until(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    )
    monkeypatch.setenv("ZEROCOPY_SHARE_TIMEOUT", "0.3")
    with pytest.raises(ServerError, match=r"longer than 0\.3 s"):
        share.load(_hang, 60)
    monkeypatch.delenv("ZEROCOPY_SHARE_TIMEOUT")
    assert share.load(sharing.print_a_lot) == 7


def _hang(seconds: float) -> None:
    import time

    time.sleep(seconds)


def test_a_loader_does_not_ask_its_own_server(tmp_path: Path) -> None:
    assert share.load(sharing.nested, os.fsencode(tmp_path / "log"))["tensor"].numel() == 1000


def test_forked_children_can_load() -> None:
    tensor = share.load(sharing.filled, 5000, 3)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if torch.equal(share.load(sharing.filled, 5000, 3), tensor):
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(share.load(sharing.filled, 5000, 3), tensor)


def test_class_of_a_result_is_the_programs_own() -> None:
    assert isinstance(share.load(sharing.box, 1), Box)
