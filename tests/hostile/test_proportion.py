"""The law of docs/security.md: what a file takes is in proportion to its size, at every way in."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from assembler import (
    APPEND,
    EMPTY_LIST,
    REDUCE,
    Code,
    call,
    checkpoint,
    get,
    name,
    ordered_dict,
    pickle,
    put,
    storage,
    tensor,
)  # fmt: skip
from conftest import Child
from dcp_folders import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    StorageInfo,
    Writer,
    archived,
)
from sanitizer import SANITIZED

UTILS = "torch._utils"

pytestmark = pytest.mark.skipif(bool(SANITIZED), reason="sanitizers keep what was freed")

ENTRIES = {
    "load": "zerocopy.load(path)",
    "lazy_load": "zerocopy.lazy_load(path)",
    "lazy_load, of a dtype": "zerocopy.lazy_load(path, dtype=torch.float64)",
    "open": "list(zerocopy.open(path))",
    "explain": "str(zerocopy.explain(path))",
    "tree": "zerocopy.open(path).tree()",
    "metadata": "zerocopy.open(path).metadata()",
    "convert": "zerocopy.convert(path, path + '.out.pt')",
    "convert, without a pickle": "zerocopy.convert(path, path + '.out.safetensors')",
    "convert, to another dtype": "zerocopy.convert(path, path + '.out.pt', dtype=torch.float16)",
    "scan": "main(['scan', path])",
    "ls": "main(['ls', '--table', path])",
    "diff": "main(['diff', path, os.path.dirname(path) + '/./' + os.path.basename(path)])",
    "verify": "main(['verify', path])",
}
CODE = """
import contextlib, os, pickle, resource, sys, torch, zerocopy
from zerocopy.cli import main
path, peak = sys.argv[1], lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out, _ = os.dup(1), os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
before = peak()
answers = zerocopy.Error, ValueError, OSError, RuntimeError, TypeError, SystemExit, pickle.UnpicklingError
with contextlib.suppress(*answers):  # to refuse the file is an answer too
    kept = {entry}
os.write(out, str((peak() - before) << 10).encode())
"""


def again(value: Code, times: int) -> Code:
    """A list that holds one object again and again."""
    return Code(EMPTY_LIST + put(value, 0) + APPEND + b"".join(get(0) + APPEND for _ in range(times)))


def saved(value: Any, storages: dict[str, bytes] | None = None) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "f.pt"
        path.write_bytes(checkpoint(pickle(value), storages or {}))
        return path

    return write


def a_set_in_many_leaves(items: int, leaves: int) -> Code:
    made = Code(call(name("builtins", "set"), list(range(items))))
    return again(made, leaves)


def calls_of_one_tensor(times: int) -> Code:
    """A list of tensors of 64 dimensions: a function and its arguments, called again and again."""
    arguments = (storage("0", "ByteStorage", numel=1), 0, (1,) * 64, (1,) * 64, False, ordered_dict())
    made = put(name(UTILS, "_rebuild_tensor_v2"), 0) + put(arguments, 1) + REDUCE + APPEND
    return Code(EMPTY_LIST + made + (get(0) + get(1) + REDUCE + APPEND) * times)


def calls_of_one_small_tensor(times: int) -> Code:
    """A list of tensors of one dimension, each of them made in five bytes. A load may have so many."""
    arguments = (storage("0", "ByteStorage", numel=1), 0, (1,), (1,), False, ordered_dict())
    made = put(name(UTILS, "_rebuild_tensor_v2"), 0) + put(arguments, 1) + REDUCE + APPEND
    return Code(EMPTY_LIST + made + (get(0) + get(1) + REDUCE + APPEND) * times)


def conversions(times: int) -> Code:
    floats = tensor(storage("0", "ByteStorage", numel=1 << 20), 0, (1 << 20,))
    rebuild = name(UTILS, "_rebuild_device_tensor_from_cpu_tensor")
    items = b"".join(
        call(rebuild, floats, name("torch", "complex128"), "cpu", False) + APPEND for _ in range(times)
    )
    return Code(EMPTY_LIST + items)


def soft_links(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "f.h5", "w") as file:
        group = file.create_group("g" * 60_000)
        for i in range(5000):
            group[str(i)] = h5py.SoftLink("/nowhere")
    return folder / "f.h5"


def chunked_datasets(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "f.h5", "w", libver="latest") as file:
        for i in range(2000):
            file.create_dataset(f"{i % 20}/{i}", data=[0.5], chunks=(1,))
    return folder / "f.h5"


def repeated_chunks(folder: Path) -> Path:
    """40 chunks of 34 MB, each over a single element."""
    part = torch.zeros(1).as_strided((1 << 12, 2100), (0, 0))
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    for number in range(40):
        writer.add(f"weight{number}", part)
    return writer.write()


def repeated_chunk(folder: Path) -> Path:
    """One chunk of 2^28 elements over a single one."""
    part = torch.zeros(1).as_strided((1 << 14, 1 << 14), (0, 0))
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    writer.add("weight", part)
    return writer.write()


def names_of_one_archive(folder: Path) -> Path:
    """400 names of a tensor of 1 MB that is not aligned."""
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    writer.files["x"] = b"abc"
    writer.add("0", torch.ones(256, 1024), file="x")
    ((index, info),) = writer.places.items()
    for i in range(400):
        writer.entries[str(i)] = writer.entries["0"]
        writer.places[MetadataIndex(**{**index.__dict__, "fqn": str(i)})] = info
    return writer.write()


def chunks_of_one_archive(folder: Path) -> Path:
    """400 chunks of a tensor, each the same 1 MB."""
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    writer.add("weight", torch.ones(256, 1024), file="x")
    ((_, info),) = writer.places.items()
    begins = [torch.Size((256 * i, 0)) for i in range(400)]
    entry = writer.entries["weight"]
    entry.size = torch.Size((256 * 400, 1024))
    entry.chunks = [ChunkStorageMetadata(offsets=begin, sizes=torch.Size((256, 1024))) for begin in begins]
    writer.places = {
        MetadataIndex(fqn="weight", index=i, offset=begin): info for i, begin in enumerate(begins)
    }
    return writer.write()


def values_of_one_archive(folder: Path) -> Path:
    """3000 names of a value in 120 kB."""
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    content = archived([[] for _ in range(60_000)])
    writer.files["x"] = content
    info = StorageInfo(relative_path="x", offset=0, length=len(content))
    for i in range(3000):
        writer.entries[str(i)] = BytesStorageMetadata()
        writer.places[MetadataIndex(fqn=str(i), index=None)] = info
    return writer.write()


def archives_of_one_tensor(folder: Path) -> Path:
    """20 archives of 240 kB, each with 40 000 tensors. Alone, each would be in proportion."""
    (folder / "dcp").mkdir()
    writer = Writer(folder / "dcp")
    content = checkpoint(pickle(calls_of_one_tensor(40_000)), {"0": bytes(1)})
    for i in range(20):
        writer.files[f"f{i}"] = content
        writer.entries[str(i)] = BytesStorageMetadata()
        info = StorageInfo(relative_path=f"f{i}", offset=0, length=len(content))
        writer.places[MetadataIndex(fqn=str(i), index=None)] = info
    return writer.write()


def packed_pickle(folder: Path) -> Path:
    """200 MB of opcodes that no load reads, in 200 kB."""
    path = folder / "packed.pt"
    torch.save({"weight": torch.zeros(1)}, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/stray.pkl", b"(" * 200_000_000)
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "a set in 2000 leaves": saved(a_set_in_many_leaves(4000, 2000)),
    "300 conversions to elements that are 16 times as wide": saved(conversions(300), {"0": bytes(1 << 20)}),
    "an integer of 30 000 bytes": saved(
        call(
            name(UTILS, "_rebuild_meta_tensor_no_storage"),
            name("torch", "float32"),
            (1 << 240_000,),
            (1,),
            False,
        )
    ),
    "100 000 calls of one function with one tuple": saved(calls_of_one_tensor(100_000), {"0": bytes(1)}),
    "500 000 times one tensor": saved(
        again(tensor(storage("0", "ByteStorage", numel=1), 0, (1,)), 500_000), {"0": bytes(1)}
    ),
    "900 000 times one storage": saved(again(storage("0", "ByteStorage", numel=1), 900_000), {"0": bytes(1)}),
    "60 000 times one dict with a long key": saved(
        again({"k" * 1000: tensor(storage("0", "ByteStorage", numel=1), 0, (1,))}, 60_000), {"0": bytes(1)}
    ),
    "4000 times one integer of 100 000 bytes": saved(again(1 << 800_000, 4000)),
    "a tensor of 2^30 elements over one": saved(
        {"weight": tensor(None, 0, (1 << 30,), (0,))}, {"0": bytes(4)}
    ),
    "5000 links with long paths": soft_links,
    "2000 datasets in chunks": chunked_datasets,
    "a chunk that repeats its element": repeated_chunk,
    "40 chunks that repeat their elements": repeated_chunks,
    "400 names of one archive": names_of_one_archive,
    "400 chunks in one archive": chunks_of_one_archive,
    "3000 values in one archive": values_of_one_archive,
    "20 archives of a tensor made again and again": archives_of_one_tensor,
}


def many_places(folder: Path) -> Path:
    """A name, a file that is not there, and a place for each of 40 000 values."""
    writer = Writer(folder)
    for i in range(40_000):
        writer.entries[str(i)] = BytesStorageMetadata()
        info = StorageInfo(relative_path=f"f{i}", offset=3 * i, length=1000)
        writer.places[MetadataIndex(fqn=str(i), index=None)] = info
    return writer.write()


def many_small_tensors(folder: Path) -> Path:
    path = folder / "f.safetensors"
    path.write_bytes(safetensors_files.saved({f"t{i}": torch.tensor([float(i)]) for i in range(60_000)}))
    return path


def small_calls(times: int) -> Callable[[Path], Path]:
    return saved(calls_of_one_small_tensor(times), {"0": bytes(1)})


CONVERTS = ("convert", "convert, without a pickle", "convert, to another dtype")
#: Files that some ways in once took too much for.
FOR_SOME: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "a packed pickle": (packed_pickle, ("scan",)),
    "40 000 places": (many_places, ("scan", "verify")),
    "20 000 calls of one small tensor": (small_calls(20_000), CONVERTS),
    "40 000 calls of one small tensor": (small_calls(40_000), CONVERTS),
    "120 000 calls of one small tensor": (small_calls(120_000), CONVERTS),
    "60 000 small tensors": (many_small_tensors, CONVERTS),
}


def faults(path: Path, entries: Iterable[str], forked: Child) -> list[str]:
    """Return the ways in that take more than 64 MiB and 20 times the file."""
    size = sum(part.stat().st_size for part in ([path] if path.is_file() else path.iterdir()))
    found = []
    for entry in entries:
        done = forked(CODE.replace("{entry}", ENTRIES[entry]), path)
        if done.returncode or int(done.stdout) > (64 << 20) + 20 * size * (1 + (entry == "diff")):
            found.append(f"{entry}: {done.stdout} bytes of a file of {size}: {done.stderr}")
    return found


@pytest.mark.parametrize("number", range(len(FILES)), ids=list(FILES))
def test_memory_in_proportion(number: int, tmp_path: Path, forked: Child) -> None:
    """Two ways in to each file, each way in to two files or three."""
    entries = [list(ENTRIES)[(number + way) % len(ENTRIES)] for way in (0, 7)]
    assert not faults(list(FILES.values())[number](tmp_path), entries, forked)


@pytest.mark.slow("each of 14 ways in to each of 17 files")
@pytest.mark.parametrize("file", FILES)
def test_memory_in_proportion_by_every_way_in(file: str, tmp_path: Path, forked: Child) -> None:
    assert not faults(FILES[file](tmp_path), ENTRIES, forked)


@pytest.mark.slow("files of tens of megabytes")
@pytest.mark.parametrize("file", FOR_SOME)
def test_memory_in_proportion_by_some_ways_in(file: str, tmp_path: Path, forked: Child) -> None:
    make, entries = FOR_SOME[file]
    assert not faults(make(tmp_path), entries, forked)
