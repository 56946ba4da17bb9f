"""One checkpoint in every form of file that torch.save, another machine or another tool gives it."""

from __future__ import annotations

import inspect
import zipfile
from pathlib import Path
from typing import Any

import torch
from archives import big_endian, rezip
from conftest import saved_bytes

from kinds import dense, layouts, training
from kinds.kind import WHERE_ALIGNED, Group, Kind, Writer, saving, write_bytes


def state() -> dict[str, Any]:
    """Return a checkpoint of several dtypes, with views, ties and attributes."""
    whole = torch.arange(12.0)
    return {
        "weight": torch.nn.Parameter(whole.view(3, 4)),
        "view": whole[3:7],
        "half": torch.arange(5).half(),
        "flags": torch.tensor([True, False, True]),
        "none": torch.empty(0),
        "steps": 7,
        "name": "net",
        "shape": whole.shape,
    }


def various() -> list[Any]:
    """Return what differs between protocols: text, bytes, large integers, sets, long tuples, frames."""
    return [state(), {1, 2}, b"bytes", bytearray(b"array"), 2**80, "ä" * 300, list(range(2000)), (1, 2, 3, 4)]


def rezipped(compression: int, **changes: bytes) -> Writer:
    def write(made: Any, path: Path) -> None:
        path.write_bytes(rezip(saved_bytes(made), compression, **changes))

    return write


def without_byteorder(made: Any, path: Path) -> None:
    """Write as releases did that knew no such record."""
    known = "_disable_byteorder_record" in inspect.signature(torch.save).parameters
    torch.save(made, path, **{"_disable_byteorder_record": True} if known else {})


def swapped(*dtypes: str, compression: int = zipfile.ZIP_STORED) -> Kind:
    """Return an entry of a file that a big-endian machine wrote."""
    name = f"big-endian: {', '.join(dtypes)}" + (", deflated" if compression else "")
    needs = " ".join(f"torch.{dtype}" for dtype in dtypes)

    def tensors() -> list[torch.Tensor]:
        return [dense.of_dtype(dtype) for dtype in dtypes]

    return Kind(
        name, lambda: big_endian(tensors(), compression), needs=needs, write=write_bytes, expected=tensors
    )


def aligned(alignment: int) -> Writer:
    def write(made: Any, path: Path) -> None:
        from torch.utils.serialization import config

        with config.patch("save.storage_alignment", alignment):
            torch.save(made, path)

    return write


def without_crc(made: Any, path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(made, path)
    finally:
        torch.serialization.set_crc32_options(before)


def skipping_data(made: Any, path: Path) -> None:
    """Leave the data out: the file has room for them."""
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(made, path)


def script() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))


def trace() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))


def write_script(made: Any, path: Path) -> None:
    torch.jit.save(made, str(path))


def same_script(loaded: Any, expected: Any) -> None:
    """Compare two programs by their code, their state and what they compute."""
    from equality import assert_same

    assert type(loaded) is type(expected) and loaded.code == expected.code
    assert_same(loaded.state_dict(), expected.state_dict())
    assert torch.equal(loaded(torch.ones(2, 3)), expected(torch.ones(2, 3)))


ZIP = Group(
    "Files: zip archives",
    (
        *(
            Kind(f"pickle protocol {protocol}", various, write=saving(pickle_protocol=protocol))
            for protocol in range(6)
        ),
        Kind(
            "storages aligned to 4096",
            state,
            needs=(config := "torch.utils.serialization.config"),
            write=aligned(4096),
        ),
        Kind("storages aligned to 1", state, needs=config, write=aligned(1)),
        Kind("without CRCs", state, needs="torch.serialization.set_crc32_options", write=without_crc),
        Kind("with skip_data", state, needs="torch.serialization.skip_data", write=skipping_data),
        Kind(
            "fake tensors, with skip_data",
            layouts.fake,
            needs="torch.serialization.skip_data",
            write=skipping_data,
        ),
        Kind("without a byteorder record", state, write=without_byteorder),
        Kind(
            "zipped anew, nothing aligned",
            lambda: dense.of_dtype("uint8"),
            write=rezipped(zipfile.ZIP_STORED),
        ),
        Kind(
            "zipped anew, unaligned float64",
            lambda: [dense.of_dtype("float64")],
            write=rezipped(zipfile.ZIP_STORED),
        ),
        Kind("zipped anew, deflated", state, write=rezipped(zipfile.ZIP_DEFLATED)),
        swapped("uint8", "bool", "int8"),
        swapped("float32", "float64", "float16", "bfloat16"),
        swapped("int16", "int32", "int64"),
        swapped("complex64", "complex128"),
        swapped("float8_e5m2", "uint16", "uint64"),
        swapped("float32", "uint8", compression=zipfile.ZIP_DEFLATED),
    ),
)


def legacy(name: str, make: Any, needs: str = "", expected: Any = None, **options: Any) -> Kind:
    """Return an entry of the format of before 1.6, whose storages begin where the one before them ends."""
    write = saving(_use_new_zipfile_serialization=False, **options)
    title = f"legacy: {name}"
    return Kind(title, make, needs=needs, write=write, placed=WHERE_ALIGNED, expected=expected)


def storages(*, typed: bool) -> list[Any]:
    """Return two storages; torch.load gives untyped ones a type."""
    untyped = torch.UntypedStorage(4).fill_(1)
    as_bytes = torch.storage.TypedStorage(wrap_storage=untyped, dtype=torch.uint8)
    return [torch.arange(3.0).storage(), as_bytes if typed else untyped]


OTHER = Group(
    "Files: other formats",
    (
        legacy("state dict", state),
        legacy("various values", various),
        legacy(
            "dense of other dtypes",
            lambda: [dense.of_dtype(d) for d in ("bool", "bfloat16", "int64", "complex64")],
        ),
        legacy(
            "float8",
            lambda: dense.of_dtype("float8_e5m2"),
            needs="torch.float8_e5m2",
            expected=lambda: dense.of_dtype("float8_e5m2"),
        ),
        legacy("ties", dense.overlapping),
        legacy("bare storages", lambda: storages(typed=False), expected=lambda: storages(typed=True)),
        legacy("conjugate view", lambda: dense.imaginary().conj()),
        legacy("sparse", layouts.coo),
        legacy("quantized", lambda: layouts.per_tensor("qint8")),
        legacy("meta", lambda: torch.empty(2, device="meta")),
        legacy("no tensors", lambda: {"a": [1, "b"]}),
        legacy("whole module", training.Net),
        legacy("optimizer state", lambda: training.stepped(training.OPTIMIZERS["Adam"]).state_dict()),
        legacy("pickle protocol 4", state, pickle_protocol=4),
        Kind("TorchScript, scripted", script, write=write_script, same=same_script),
        Kind("TorchScript, traced", trace, write=write_script, same=same_script),
    ),
)
