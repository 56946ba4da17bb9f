"""``zerocopy.convert`` under faults: nothing is at the target, and the message says why."""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from archives import deflated
from assembler import Code, checkpoint, pickle, tensor
from conftest import Child, Saver, stock_load
from equality import assert_same

import zerocopy

STATE = OrderedDict(
    (
        ("embed.weight", torch.arange(600.0).view(20, 30)),
        ("layer.0.bias", torch.full((7,), 2, dtype=torch.int64)),
        ("layer.0.scale", torch.tensor(3.5, dtype=torch.bfloat16)),
        ("empty", torch.empty(0, 4)),
        ("flags", torch.tensor([True, False, True])),
    )
)

pytest.importorskip("h5py")


#: One target of each kind; those with "out" take shards.
TARGETS = ("m.safetensors", "m.pt", "m.h5", "out", "out/model.bin")


def unfit_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(12.0)
    return {
        "sparse": torch.ones(3).to_sparse(),
        "expanded": torch.ones(1).expand(3),
        "front": base[:8],
        "back": base[4:],
        "wide": torch.ones(2, dtype=torch.complex128),
        "meta": torch.empty(2, device="meta"),
        "__metadata__": torch.ones(2),
        **({"bits": torch.empty(2, dtype=torch.bits8)} if hasattr(torch, "bits8") else {}),
    }


def test_tensors_that_safetensors_cannot_hold_are_listed(save: Saver, tmp_path: Path) -> None:
    unfit = unfit_tensors()
    source = save({**unfit, "fit": torch.ones(2)})
    for target, more in (("m.safetensors", {}), ("out", {"max_shard_size": 100})):
        before = set(tmp_path.iterdir())
        with pytest.raises(zerocopy.UnsupportedError) as caught:
            zerocopy.convert(source, tmp_path / target, **more)
        assert all(name in str(caught.value) for name in unfit) and "fit (" not in str(caught.value)
        assert set(tmp_path.iterdir()) == before
    many = save({f"s{i}": torch.ones(3).to_sparse() for i in range(15)}, "many.pt")
    with pytest.raises(zerocopy.UnsupportedError, match=r"15 of its tensors.* and 5 more"):
        zerocopy.convert(many, tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("fault", ["interrupted", "changed"])
def test_failed_conversion_leaves_no_file(save: Saver, tmp_path: Path, name: str, fault: str) -> None:
    source = save(STATE)

    def disturb(done: int, total: int) -> None:
        if fault == "interrupted":
            raise KeyboardInterrupt
        with source.open("ab") as file:
            file.write(b"more")

    before = set(tmp_path.iterdir())
    more = {"max_shard_size": 2000} if "out" in name else {}
    with pytest.raises((KeyboardInterrupt, OSError)) as caught:
        zerocopy.convert(source, tmp_path / name, progress=disturb, **more)
    assert fault == "interrupted" or caught.value.errno == errno.ESTALE
    assert set(tmp_path.iterdir()) == before


def test_records_that_do_not_inflate_are_refused(save: Saver, tmp_path: Path) -> None:
    source = deflated(save({"a": torch.arange(1000.0)}))
    content = bytearray(source.read_bytes())
    begin = content.index(b"data/0") + 100
    content[begin : begin + 40] = b"\xff" * 40
    source.write_bytes(content)
    before = set(tmp_path.iterdir())
    for name in ("m.safetensors", "m.pt", "m.h5"):
        with pytest.raises(zerocopy.FormatError):
            zerocopy.convert(source, tmp_path / name)
        assert set(tmp_path.iterdir()) == before


def test_a_folder_that_was_there_stays_as_it_was(save: Saver, tmp_path: Path) -> None:
    zerocopy.convert(save(STATE), tmp_path / "out", max_shard_size=2000)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ZeroDivisionError):
        zerocopy.convert(save(STATE), tmp_path / "out", max_shard_size=2000, dtype=torch.float64,
                         progress=lambda done, total: 1 // 0)  # fmt: skip
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_directories_and_pipes_are_refused_as_targets(save: Saver, tmp_path: Path) -> None:
    source = save(STATE)
    for name in ("m.safetensors", "m.pt", "m.h5"):
        (tmp_path / name).mkdir()
        with pytest.raises(IsADirectoryError):
            zerocopy.convert(source, tmp_path / name)
        with pytest.raises(FileNotFoundError):
            zerocopy.convert(source, tmp_path / "nowhere" / name)
        os.mkfifo(tmp_path / f"pipe-{name}")
        with pytest.raises(OSError, match=f"not a regular file.*pipe-{name}"):
            zerocopy.convert(source, tmp_path / f"pipe-{name}")
        assert (tmp_path / f"pipe-{name}").is_fifo()
    assert len(list(tmp_path.iterdir())) == 7


FULL = """
    import resource, sys, zerocopy
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
    for target in sys.argv[2:]:
        how = {"max_shard_size": 2000} if "out" in target else {}
        try:
            zerocopy.convert(sys.argv[1], target, **how)
        except OSError as error:
            print(error)
"""


def test_disk_that_is_full_leaves_no_file(save: Saver, forked: Child, tmp_path: Path) -> None:
    source = save(STATE)
    before = set(tmp_path.iterdir())
    done = forked(FULL, source, *(tmp_path / name for name in TARGETS))
    assert done.stdout.count("File too large") == len(TARGETS)
    assert "/tmp" not in done.stdout.replace(str(tmp_path), "")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.slow("file systems of 2 MiB")
def test_small_disk_leaves_no_file(save: Saver, small_disk: Path) -> None:
    source = save({f"layer.{i}": torch.full((100_000,), float(i)) for i in range(10)})
    for name, how in (*((name, {}) for name in TARGETS), ("m.pt", {"dtype": torch.float64})):
        more: dict[str, Any] = {"max_shard_size": "500KB"} if "out" in name else how
        with pytest.raises(OSError, match="No space left") as caught:
            zerocopy.convert(source, small_disk / name, **more)
        assert caught.value.errno == errno.ENOSPC
        assert not any(small_disk.iterdir())


def test_endings(save: Saver, tmp_path: Path) -> None:
    source = save(STATE)
    for name in ("m", "m.txt"):
        with pytest.raises(zerocopy.UnsupportedError, match=r"\.pt, \.safetensors or \.h5"):
            zerocopy.convert(source, tmp_path / name)
    with pytest.raises(zerocopy.UnsupportedError, match="shards"):
        zerocopy.convert(source, tmp_path / "m.h5", max_shard_size=5)
    with pytest.raises(ValueError, match="one source"):
        zerocopy.convert([], tmp_path / "m.pt")
    with pytest.raises(TypeError, match="dtype"):
        zerocopy.convert(source, tmp_path / "m.pt", dtype="int")  # type: ignore[arg-type]


def test_conversion_over_a_mapped_file_keeps_the_mapping_and_the_permissions(tmp_path: Path) -> None:
    path, target = tmp_path / "m.safetensors", tmp_path / "m.h5"
    path.write_bytes(safetensors_files.saved({"w": torch.arange(1000.0)}))
    zerocopy.convert(path, target)
    for place in (path, target):
        place.chmod(0o640)
        mapped = zerocopy.load(place)
        zerocopy.convert(place, place, dtype=torch.float64)
        assert torch.equal(mapped["w"], torch.arange(1000.0))
        assert torch.equal(zerocopy.load(place)["w"], torch.arange(1000.0).double())
        assert place.stat().st_mode & 0o777 == 0o640
    assert {*tmp_path.iterdir()} == {path, target}


def test_progress_counts_to_the_number_of_bytes(save: Saver, tmp_path: Path) -> None:
    for name in TARGETS:
        said: list[tuple[int, int]] = []
        more: dict[str, Any] = {"max_shard_size": 2000} if "out" in name else {}
        zerocopy.convert(save(STATE), tmp_path / name, progress=lambda *n, said=said: said.append(n), **more)
        assert said == sorted(said) and said[-1][0] == said[-1][1] >= 2461


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="torch 2.0 and later")
def test_convert_ignores_the_default_device(save: Saver, tmp_path: Path) -> None:
    source = save(STATE)
    for dtype, name in ((None, "m.pt"), (torch.float64, "m.safetensors"), (torch.float64, "m.h5")):
        with torch.device("meta"):
            zerocopy.convert(source, tmp_path / name, dtype=dtype)
        scale = zerocopy.load(tmp_path / name)["layer.0.scale"]
        assert torch.equal(scale, torch.tensor(3.5, dtype=dtype or torch.bfloat16))


MEMORY = """
    import os, re, sys, torch, zerocopy
    if sys.argv[4] == "pread":
        os.environ["ZEROCOPY_BACKEND"] = "pread"
    def anonymous():
        return int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1])
    how = {"dtype": torch.bfloat16} if sys.argv[4] == "cast" else {}
    how |= {"max_shard_size": "20MB"} if sys.argv[4] == "shards" else {}
    zerocopy.convert(sys.argv[2], sys.argv[3] + "/small" + sys.argv[5], **how)  # imports, caches
    before, most = anonymous(), 0
    def look(done, total):
        global most
        most = max(most, anonymous())
    zerocopy.convert(sys.argv[1], sys.argv[3] + "/big" + sys.argv[5], progress=look, **how)
    print(most - before)
"""


@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.slow("files of 128 MiB")
@pytest.mark.parametrize(
    ("how", "ending"),
    [("copy", ".safetensors"), ("copy", ".h5"), ("cast", ".pt"), ("cast", ".safetensors"), ("shards", ".pt"),
     ("deflated", ".h5"), ("deflated", ".pt"), ("pread", ".safetensors")],
)  # fmt: skip
def test_memory_is_a_tensor_at_a_time(
    save: Saver, forked: Child, tmp_path: Path, how: str, ending: str
) -> None:
    state = {f"layer.{i}": torch.full((1 << 21,), float(i)) for i in range(16)}  # 128 MiB, each 8 MiB
    big = save(state, "big-source.pt")
    big = deflated(big) if how == "deflated" else big
    done = forked(MEMORY, big, save(STATE, "small-source.pt"), tmp_path, how, ending)
    assert int(done.stdout) < 58 << 10, f"{done.stdout} kB"


@pytest.mark.slow("400,000 names")
def test_more_tied_names_than_the_metadata_account_for_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    ties = {f"{number}": "w" for number in range(400_000)}
    path.write_bytes(safetensors_files.saved({"w": torch.ones(2)}, ties))
    for name, more in (("m.pt", {}), ("m.safetensors", {}), ("m.bin", {"max_shard_size": 100})):
        with pytest.raises(zerocopy.FormatError, match=r"fewer tied names.*found 400000"):
            zerocopy.convert(path, tmp_path / name, **more)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow("100,000 views")
def test_thirty_thousand_views_of_one_storage_are_converted(tmp_path: Path) -> None:
    path = tmp_path / "views.pt"
    whole = torch.arange(30_000.0)
    torch.save([whole[i] for i in range(len(whole))], path)
    zerocopy.convert(path, tmp_path / "out.pt")
    views = zerocopy.load(tmp_path / "out.pt")
    assert len(views) == len(whole) and torch.equal(torch.stack(views), whole)
    assert views[0].data_ptr() + 4 == views[1].data_ptr()


def test_sources_that_are_file_objects(save: Saver, tmp_path: Path) -> None:
    content = deflated(save(STATE)).read_bytes()
    for name in ("n.pt", "n.h5", "n.safetensors"):
        source = io.BytesIO(b"junk" + content)
        source.seek(4)
        zerocopy.convert(source, tmp_path / name)
        loaded = zerocopy.load(tmp_path / name)
        assert_same({key: loaded[key] for key in STATE}, dict(STATE))
        assert len(loaded) == len(STATE)


class OnlyReads:
    """A file object that cannot seek."""

    def __init__(self, content: bytes) -> None:
        self.read = io.BytesIO(content).read


@pytest.mark.parametrize("name", ["n.pt", "n.h5", "n.safetensors"])
def test_pipe_is_read_once(save: Saver, tmp_path: Path, name: str) -> None:
    zerocopy.convert(OnlyReads(deflated(save(STATE)).read_bytes()), tmp_path / name)
    loaded = zerocopy.load(tmp_path / name)
    assert_same({key: loaded[key] for key in STATE}, dict(STATE))


REFUSED = """
    import os, shutil, sys, tempfile, zerocopy

    def convert(target):
        shards = {"max_shard_size": 2000} if "out" in target else {}
        zerocopy.convert(sys.argv[1], target, **shards)

    folder = tempfile.mkdtemp()
    for target in sys.argv[2:]:  # imports what another user may not read
        convert(f"{folder}/{os.path.basename(target)}")
    shutil.rmtree(folder)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    for target in sys.argv[2:]:
        try:
            convert(target)
        except PermissionError as error:
            print(error.filename)
"""


@pytest.mark.parametrize("closed", ["source.pt", "new"])
def test_unreadable_source_or_unwritable_target_is_named(forked: Child, closed: str) -> None:
    with tempfile.TemporaryDirectory() as made:  # in no folder that only we may look into
        folder = Path(made)
        torch.save(STATE, folder / "source.pt")
        (folder / "new" / "out").mkdir(parents=True)
        for each in (folder, folder / "new", folder / "new" / "out"):
            each.chmod(0o777)
        for path in [folder / closed, folder / closed / "out"] if closed == "new" else [folder / closed]:
            path.chmod(0o500)
        done = forked(
            REFUSED, folder / "source.pt", *(folder / "new" / name for name in TARGETS if name != "out")
        )
        said = done.stdout.split()
        assert len(said) == 4 and all(Path(path).is_relative_to(folder / closed) for path in said), (
            done.stdout
        )
        assert [path for path in (folder / "new").rglob("*") if path.is_file()] == []


def test_values_that_nest_too_deep_for_pickle_are_refused(tmp_path: Path) -> None:
    """Python 3.11 pickles fewer levels than a checkpoint may have, later ones more."""
    path = tmp_path / "model.pt"
    path.write_bytes(checkpoint(pickle({"weight": tensor(), "deep": Code(b"]" * 900 + b"a" * 899)})))
    try:
        zerocopy.convert(path, tmp_path / "out.pt")
    except zerocopy.UnsupportedError as error:
        assert "nested too deep" in str(error) and not (tmp_path / "out.pt").exists()
    else:
        depth, level = 1, zerocopy.load(tmp_path / "out.pt")["deep"]
        while level:
            depth, level = depth + 1, level[0]
        assert depth == 900


@pytest.mark.parametrize("order", [1, -1])
def test_tied_name_that_is_no_text_is_refused_by_name(save: Saver, tmp_path: Path, order: int) -> None:
    path = save(dict.fromkeys(("a", "\ud800")[::order], torch.ones(2)))
    with pytest.raises(zerocopy.UnsupportedError, match=r"\\ud800 \(a tied name that is not"):
        zerocopy.convert(path, tmp_path / "n.safetensors")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow("threads that race")
def test_other_threads_that_map_files_meanwhile(tmp_path: Path) -> None:
    """Other threads map files at addresses where the source is mapped later."""
    state = {"small": torch.full((64, 64), 7.0), "large": torch.arange(1, (1 << 20) + 1).float()}
    source, other = tmp_path / "m.safetensors", tmp_path / "m.pt"
    torch.save(state, other)
    zerocopy.convert(other, source)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            zerocopy.load(other)

    def write(target: Path) -> None:
        with zerocopy.Writer(target) as writer:
            writer.save(zerocopy.lazy_load(source))

    ways: list[Callable[[Path], Any]] = [
        lambda target: zerocopy.convert(source, target),
        lambda target: zerocopy.save(zerocopy.lazy_load(source), target),
        lambda target: zerocopy.save(zerocopy.lazy_load(source), target, wait=False).wait(),
        write,
    ]
    threads = [threading.Thread(target=load) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for number in range(60):
            ways[number % 4](tmp_path / "target.pt")
            assert torch.equal(stock_load(tmp_path / "target.pt")["large"], state["large"]), number
    finally:
        stop.set()
        for thread in threads:
            thread.join()
