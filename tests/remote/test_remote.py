"""Checkpoints by URL: the same as by path, in few requests, and never of two versions of a file."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attacks import CATALOG
from commands import run_without_torch
from equality import assert_same
from http_server import Handler, HttpServer, serving

import zerocopy
import zerocopy.numpy
from zerocopy.__main__ import main
from zerocopy.remote import http

STATE: dict[str, Any] = {f"layers.{i}.weight": torch.full((1000 + i,), float(i)) for i in range(300)}
FILES = ["a.pt", "a.safetensors", "a.h5", "legacy.pt", "shards/model.safetensors.index.json", "shards/"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    torch.save(STATE, folder / "a.pt")
    torch.save(STATE, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    zerocopy.convert(folder / "a.pt", folder / "a.safetensors")
    zerocopy.convert(folder / "a.pt", folder / "shards", max_shard_size="500KB")
    if HAS_H5PY:
        import h5py

        zerocopy.convert(folder / "a.pt", folder / "a.h5")
        with h5py.File(folder / "packed.h5", "w") as file:  # which the core cannot read alone
            for name, tensor in STATE.items():
                file.create_dataset(name, data=tensor.numpy(), chunks=(100,), compression="gzip")
    return folder


HAS_H5PY = importlib.util.find_spec("h5py") is not None


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(http, "_FIRST_PAUSE", 0.001)
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(folder) as server:
        yield server


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[HttpServer]:
    with serving(tmp_path) as server:
        yield server


# ------------------------------------------------------------------------------------- the same as by path


@pytest.mark.parametrize("name", FILES)
def test_every_call_gives_what_it_gives_by_path(server: HttpServer, folder: Path, name: str) -> None:
    if name.endswith(".h5") and not HAS_H5PY:
        pytest.skip("needs h5py")
    url, path = server.url(name), str(folder / name)
    loaded = zerocopy.load(url)
    assert_same(loaded, zerocopy.load(path))
    loaded["layers.3.weight"].add_(1)  # memory of its own
    lazy = zerocopy.lazy_load(url)
    assert_same({key: value.materialize() for key, value in lazy.items()}, zerocopy.load(path))
    with zerocopy.open(url) as far, zerocopy.open(path) as near:
        assert list(far) == list(near)
        assert_same(far.get_tensor("layers.7.weight"), near.get_tensor("layers.7.weight"))
        wanted = {f"layers.{i}.weight": slice(2, 9) for i in range(0, 300, 7)}
        assert_same(far.read(wanted), near.read(wanted))
    assert {each.how for each in zerocopy.explain(url).storages} <= {"copied"}
    with zerocopy.numpy.open(url) as arrays:
        taken = {key: arrays[key] for key in list(arrays)[:9]}
    assert_arrays(taken, {key: STATE[key] for key in taken})
    assert_arrays(zerocopy.numpy.load(url), STATE)


def assert_arrays(arrays: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert arrays.keys() == expected.keys()
    for key, tensor in expected.items():
        assert np.array_equal(arrays[key], tensor.numpy())
        arrays[key] += 1  # memory of its own


def test_loaded_memory_is_the_file_once(server: HttpServer) -> None:
    loaded = zerocopy.load(server.url("a.pt"))
    addresses = sorted(tensor.data_ptr() for tensor in loaded.values())
    assert addresses[-1] - addresses[0] < 2 * 4 * sum(map(len, STATE.values()))


@pytest.mark.parametrize("name", FILES)
def test_modules_are_filled(server: HttpServer, name: str) -> None:
    if name.endswith(".h5") and not HAS_H5PY:
        pytest.skip("needs h5py")
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleDict({"3": torch.nn.Module()})
    module.layers["3"].weight = torch.nn.Parameter(torch.zeros(1003))
    zerocopy.load_model(module, server.url(name), strict=False)
    assert torch.equal(module.layers["3"].weight, STATE["layers.3.weight"])


def test_offsets_and_programs(changing: HttpServer, tmp_path: Path) -> None:
    zerocopy.save(STATE, tmp_path / "a.pt")
    assert zerocopy.storage_offsets(changing.url("a.pt")) == zerocopy.storage_offsets(tmp_path / "a.pt")
    module = torch.jit.script(torch.nn.Linear(3, 2))
    torch.jit.save(module, tmp_path / "program.pt")
    loaded = zerocopy.jit.load(changing.url("program.pt"))
    assert_same(dict(loaded.state_dict()), dict(module.state_dict()))


def test_convert(server: HttpServer, tmp_path: Path) -> None:
    zerocopy.convert(server.url("a.pt"), tmp_path / "a.safetensors", keep=["layers.5"])
    assert_same(zerocopy.load(tmp_path / "a.safetensors"), {"layers.5.weight": STATE["layers.5.weight"]})


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "packed.h5", "shards/"])
def test_commands(server: HttpServer, folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.endswith(".h5") and not HAS_H5PY:
        pytest.skip("needs h5py")
    url, path = server.url(name), str(folder / name)
    for first, *rest in (["show", "layers.3.weight"], ["diff", path], ["scan"], ["verify"]):
        assert main([first, url, *rest]) == 0, (first, capsys.readouterr())
    found = []
    for place in (url, path):
        capsys.readouterr()
        assert main(["ls", "--json", place]) == 0
        found.append([(row["name"], row["shape"]) for row in json.loads(capsys.readouterr().out)["tensors"]])
    assert found[0] == found[1]


def test_patched_torch_load_knows_no_urls(server: HttpServer) -> None:
    with zerocopy.patched(), pytest.raises(FileNotFoundError):
        torch.load(server.url("a.pt"))
    assert not server.requests


def test_commands_that_take_none_say_which_do(server: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", server.url("a.pt"), "-o", "-"]) == 0
    assert "layers.3.weight" in capsys.readouterr().out
    assert main(["report", server.url("a.pt"), "-o", server.url("page.html")]) == 2
    assert "URLs are only read" in capsys.readouterr().err
    assert main(["map", server.url("a.pt")]) == 2
    assert "ls, show, scan" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- few requests


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a .pt and a .safetensors file of 10 GB, which are holes."""
    folder = tmp_path_factory.mktemp("large")
    nbytes, header = 5_000_000, {}
    for i in range(2000):
        header[f"model.layers.{i}.weight"] = {
            "dtype": "F32", "shape": [1000, 1250], "data_offsets": [i * nbytes, (i + 1) * nbytes],
        }  # fmt: skip
    text = json.dumps(header).encode()
    with (folder / "a.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2000 * nbytes)
    state = zerocopy.load(folder / "a.safetensors")
    with zerocopy.skip_data():
        zerocopy.save(state, folder / "a.pt")
    return folder


@pytest.mark.parametrize(("name", "most"), [("a.pt", 4), ("a.safetensors", 2)])
def test_listing_and_scanning_10_gb_takes_few_requests(large: Path, name: str, most: int) -> None:
    with serving(large) as server:
        for command in ("ls", "scan"):
            server.forget()
            (done,) = run_without_torch([command, server.url(name)])
            assert (done.code, done.err) == (0, "")
            assert len(server.requests) <= most and server.sent < 1_000_000, server.requests
        server.forget()
        with zerocopy.open(server.url(name)) as checkpoint:
            opened = server.sent
            assert checkpoint.get_slice("model.layers.1500.weight")[3, :10].sum() == 0
            assert server.sent - opened <= 5_000_000 + (1 << 17)
            server.forget()
            assert checkpoint.get_tensor("model.layers.100.weight").shape == (1000, 1250)
            assert server.sent <= 5_000_000 + (1 << 17), server.requests


def test_neighbours_share_requests(server: HttpServer) -> None:
    with zerocopy.open(server.url("a.pt")) as checkpoint:
        server.forget()
        checkpoint.read({f"layers.{i}.weight": ... for i in range(50, 250)})
        assert len(server.requests) < 100


def test_connections_stay_open(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    connect = http._connect
    monkeypatch.setattr(http, "_connect", lambda parts: made.append(parts) or connect(parts))
    with zerocopy.open(server.url("a.pt")) as checkpoint:
        for name in list(checkpoint)[::20]:
            checkpoint.get_tensor(name)
    assert len(server.requests) > 2 and len(made) == 1


# ------------------------------------------------------------------------------------- nothing stale, nothing torn


@pytest.mark.parametrize("honours_conditions", [True, False])
def test_file_that_changes_meanwhile(changing: HttpServer, honours_conditions: bool) -> None:
    path = changing.folder / "m.pt"
    torch.save({f"x{i}": torch.zeros(100_000) for i in range(9)}, path)
    checkpoint = zerocopy.open(changing.url("m.pt"))
    lazy = checkpoint["x7"]
    torch.save({f"x{i}": torch.ones(100_000) for i in range(9)}, path)
    if not honours_conditions:
        changing.faults = [lambda request: request.headers.__delitem__("If-Match") or False]
    with pytest.raises(OSError, match=re.escape(changing.url("m.pt"))) as caught:
        lazy.materialize()
    assert caught.value.errno == errno.ESTALE


def faults(*statuses: int, headers: dict[str, str] | None = None) -> Callable[[Handler], bool]:
    """Return a fault that answers the first requests with these statuses."""
    left = list(statuses)

    def answer(request: Handler) -> bool:
        if left:
            request.answer(left.pop(0), headers or {})
            return True
        return False

    return answer


def cut(request: Handler) -> bool:
    """Send less than promised, the first time."""
    request.server.faults.clear()
    request.send_response(206)
    request.send_header("Content-Range", f"bytes 0-{http.BEGINNING - 1}/1299999")
    request.send_header("Content-Length", str(http.BEGINNING))
    request.end_headers()
    request.wfile.write(b"PK")
    request.close_connection = True
    return True


def hang_up(request: Handler) -> bool:
    request.server.faults.clear()
    request.close_connection = True
    return True


@pytest.mark.parametrize("fault", [faults(503, 500, 429, 502), hang_up, cut], ids=["busy", "hangs up", "cut"])
def test_faults_that_pass(server: HttpServer, fault: Any) -> None:
    server.faults = [fault]
    if fault is cut:  # what it says of the size is compared with the next answer
        with pytest.raises(OSError, match="changed"):
            zerocopy.load(server.url("a.pt"))
    else:
        assert_same(zerocopy.load(server.url("a.pt")), STATE)


@pytest.mark.parametrize(
    ("statuses", "number", "says"),
    [
        ([503] * 9, errno.EIO, "status 503, after 5 attempts"),
        ([404], errno.ENOENT, "status 404"),
        ([401], errno.EACCES, "status 401"),
        ([400], errno.EIO, "status 400"),
    ],
    ids=["busy for ever", "missing", "not allowed", "other"],
)
def test_faults_that_stay_are_named(server: HttpServer, statuses: list[int], number: int, says: str) -> None:
    server.faults = [faults(*statuses)]
    with pytest.raises(OSError, match=says) as caught:
        zerocopy.load(server.url("a.pt", "me:secret@"))
    assert caught.value.errno == number
    assert "bytes 0 to" in str(caught.value) and server.url("a.pt") in str(caught.value)
    assert "secret" not in str(caught.value)
    assert server.headers[0]["Authorization"].startswith("Basic ")


def test_names_with_spaces_and_letters_of_other_scripts(changing: HttpServer) -> None:
    torch.save({"x": torch.ones(3)}, changing.folder / "größe 1.pt")
    for name in ("größe 1.pt", "gr%C3%B6%C3%9Fe%201.pt?download=true"):
        assert_same(zerocopy.load(changing.url(name)), {"x": torch.ones(3)})


def test_hosts_that_do_not_answer_are_named() -> None:
    with pytest.raises(OSError, match=r"http://nowhere\.invalid/a\.pt"):
        zerocopy.load("http://nowhere.invalid/a.pt")


def test_redirects(server: HttpServer) -> None:
    server.faults = [faults(302, 307, headers={"Location": "/a.pt?signed=1"})]
    assert_same(zerocopy.load(server.url("gone")), STATE)
    server.faults = [faults(*[302] * 99, headers={"Location": "/a.pt"})]
    with pytest.raises(OSError, match="redirects") as caught:
        zerocopy.load(server.url("a.pt"))
    assert caught.value.errno == errno.ELOOP
    server.faults = [faults(302, headers={"Location": "file:///etc/passwd"})]
    with pytest.raises(OSError, match="a redirect to file:"):
        zerocopy.load(server.url("a.pt"))
    server.faults = [faults(200, headers={"Content-Length": ""})]
    with pytest.raises(OSError, match="does not tell the file's length; download it first"):
        zerocopy.load(server.url("a.pt"))


def test_signed_address_that_expires_is_asked_for_again(server: HttpServer) -> None:
    server.faults = [faults(302, headers={"Location": "/a.pt?signed=1"})]
    checkpoint = zerocopy.open(server.url("a.pt"))
    server.faults = [faults(403)]
    assert_same(checkpoint.get_tensor("layers.150.weight"), STATE["layers.150.weight"])


def test_server_without_ranges(server: HttpServer) -> None:
    server.has_ranges = False
    assert_same(zerocopy.load(server.url("a.pt")), STATE)

    def fail_at_second(request: Handler) -> bool:
        return len(server.requests) == 2 and (request.answer(503, {}) or True)

    server.forget()
    server.faults = [fail_at_second]
    assert_same(zerocopy.load(server.url("a.pt")), STATE)

    def change_at_second(request: Handler) -> bool:
        return len(server.requests) == 2 and (request.answer(200, {"ETag": '"other"'}, bytes(9)) or True)

    server.forget()
    server.faults = [change_at_second]
    with pytest.raises(OSError, match="changed") as caught:
        zerocopy.load(server.url("a.pt"))
    assert caught.value.errno == errno.ESTALE
    server.faults.clear()
    with pytest.raises(OSError, match="no ranges"):
        zerocopy.open(server.url("a.pt"))


def test_proxy(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url("", "me:secret@"))
    monkeypatch.setenv("no_proxy", "")
    assert_same(zerocopy.load("http://elsewhere.invalid/a.pt"), STATE)
    assert server.requests[0][0] == "http://elsewhere.invalid/a.pt"
    assert server.headers[0]["Proxy-Authorization"].startswith("Basic ")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.forget()
    zerocopy.open(server.url("a.pt")).close()
    assert server.requests[0][0] == "/a.pt"


def test_forked_child_reads_over_a_connection_of_its_own(server: HttpServer) -> None:
    checkpoint = zerocopy.open(server.url("a.pt"))
    process = os.fork()
    if process == 0:
        try:
            os._exit(int(checkpoint.get_tensor("layers.99.weight")[0]))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 99
    assert checkpoint.get_tensor("layers.250.weight")[0] == 250


# ------------------------------------------------------------------------------------- other file systems


def test_fsspec(folder: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/box/a.pt", (folder / "a.pt").read_bytes())
    for url in ("memory://box/a.pt", "simplecache::memory://box/a.pt"):
        assert_same(zerocopy.load(url), STATE)
    with zerocopy.open("memory://box/a.pt") as checkpoint:
        assert_same(checkpoint.get_tensor("layers.7.weight"), STATE["layers.7.weight"])
        memory.pipe("/box/a.pt", b"short")
        with pytest.raises(OSError, match=r"memory://box/a\.pt") as caught:
            checkpoint.get_tensor("layers.9.weight")
        assert caught.value.errno == errno.ESTALE
    with pytest.raises(FileNotFoundError) as missing:
        zerocopy.load("memory://box/nothing.pt")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "memory://box/nothing.pt")
    with pytest.raises(IsADirectoryError, match="slash"):
        zerocopy.open("memory://box")
    memory.pipe("/box/model.safetensors", (folder / "a.safetensors").read_bytes())
    assert_same(zerocopy.load("memory://box/"), zerocopy.load(folder / "a.safetensors"))
    memory.pipe("/dcp/.metadata", b"-")
    with pytest.raises(zerocopy.UnsupportedError, match=r"^memory://dcp/: folders of torch\.distributed"):
        zerocopy.load("memory://dcp/")


def test_unknown_scheme_is_named() -> None:
    with pytest.raises(zerocopy.UnsupportedError, match=r"nonsense://x/a\.pt"):
        zerocopy.load("nonsense://x/a.pt")


# ------------------------------------------------------------------------------------- hostile files


def answer(load: Callable[[str], Any], where: str) -> str:
    try:
        return str(type(load(where)))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace(where, "FILE")


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow("a thousand files"))])
def test_hostile_files_get_the_same_answers(changing: HttpServer, every: int) -> None:
    attacks = [attack for family in CATALOG for attack in family.attacks if attack.weights_only]
    differ = []
    for attack in attacks[::every]:
        path = changing.folder / "a.pt"
        path.write_bytes(attack.make())
        ours = [answer(zerocopy.load, server_or_path) for server_or_path in (str(path), changing.url("a.pt"))]
        if ours[0] != ours[1]:
            differ.append(f"{attack.name}: {ours}")
    assert not differ, "\n".join(differ)
