"""``zerocopy.convert`` without torch: the core lists the tensors, and their bytes are copied as they lie."""

from __future__ import annotations

import argparse
import errno
import io
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from pickle import UnpicklingError

import pytest
import safetensors_files
import torch
from archives import big_endian, deflated, saved_bytes
from assembler import Code, checkpoint, pickle, tensor
from conftest import stock_load
from equality import assert_same, untyped
from strategies import filled

import zerocopy
from zerocopy.converting.plain import plain_sources

WEIGHT = torch.arange(12.0).view(3, 4)


def is_plain(path: Path) -> bool:
    """Return whether a source is converted without torch."""
    found = plain_sources([path], ("zip", "legacy", "safetensors")) or []
    for layer in (layer for source in found for layer in source.layers):
        layer.close()
    return bool(found)


WITHOUT_TORCH = """
import sys, zerocopy
source, folder = sys.argv[1:]
how = {"strip_prefix": "model.", "keep": ["model", "by"]}
zerocopy.convert(source, f"{folder}/a.safetensors", **how)
zerocopy.convert(f"{folder}/a.safetensors", f"{folder}/b.pt")
zerocopy.convert([f"{folder}/a.safetensors"], f"{folder}/c.safetensors", ties="copy")
zerocopy.convert(source, f"{folder}/shards", max_shard_size=50, **how)
zerocopy.convert(f"{folder}/shards", f"{folder}/d.pt")
zerocopy.convert(f"{folder}/shards", f"{folder}/more/pytorch_model.bin", max_shard_size=50)
assert "torch" not in sys.modules
"""


@pytest.mark.slow("starts Python")
def test_torch_is_not_imported_where_bytes_stay_what_they_are(tmp_path: Path) -> None:
    model = {"w": WEIGHT, "tied": WEIGHT, "h": torch.ones(2).half()}
    torch.save({"model": model, "step": 7, "by": "A"}, tmp_path / "source.pt")
    command = [sys.executable, "-c", WITHOUT_TORCH, tmp_path / "source.pt", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for name in ("b.pt", "d.pt", "more"):
        found = zerocopy.load(tmp_path / name)
        assert found.keys() == model.keys() and all(torch.equal(found[key], model[key]) for key in model)
    with zerocopy.open(tmp_path / "c.safetensors") as copied:
        assert sorted(copied) == ["h", "tied", "w"] and copied.metadata() == {"by": "A", "format": "pt"}


def test_flat_pickle_is_what_torch_would_save(tmp_path: Path) -> None:
    """Tensors of each dtype, of several ranks, and a tie."""
    state = OrderedDict(
        (str(dtype).removeprefix("torch."), filled(dtype, 6, 1).view(2, 3))
        for dtype in safetensors_files.DTYPES.values()
    )
    state |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "deep": torch.ones(1, 2, 1, 2)}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_files.saved(state, {"tied": "scalar"}))
    assert is_plain(path)
    zerocopy.convert(path, tmp_path / "m.pt")
    found = stock_load(tmp_path / "m.pt")
    assert untyped(found["tied"]).data_ptr() == untyped(found["scalar"]).data_ptr()
    del found["tied"]
    assert_same(found, OrderedDict((name, state[name]) for name in found))
    ours, theirs = (tmp_path / "m.pt").read_bytes(), saved_bytes({name: state[name] for name in found})
    for name in (b"_rebuild_tensor_v2", b"_rebuild_tensor_v3", b"UntypedStorage"):
        assert (name in ours) == (name in theirs), name


def test_what_takes_torch_is_converted_with_torch(tmp_path: Path) -> None:
    """Each would be another checkpoint, or none, if its bytes were copied by what the core lists."""
    safe = {"w": WEIGHT, "v": torch.nn.Parameter(torch.ones(2)), "texts": ["a"], "n": 5}
    attached = OrderedDict(w=WEIGHT)
    attached.safetensors_metadata = {"by": "A"}  # type: ignore[attr-defined]
    stored = {
        "transposed": saved_bytes({"w": WEIGHT.t()}),
        "conjugate": saved_bytes({"w": torch.ones(2, dtype=torch.complex64).conj()}),
        "big-endian": big_endian([WEIGHT]),
        "metadata": saved_bytes(attached),
        "a long text": saved_bytes({"w": WEIGHT, "config": "x" * 5000}),
    }
    path, target = tmp_path / "m.pt", tmp_path / "m.safetensors"
    torch.save(safe, path)
    assert is_plain(path) and not is_plain(deflated(path))
    torch.save(safe, path, _use_new_zipfile_serialization=False)
    assert is_plain(path)
    for kind, content in stored.items():
        path.write_bytes(content)
        zerocopy.convert(path, target)
        assert not is_plain(path) or kind == "conjugate", kind  # which older releases save as they are shown
        with zerocopy.open(path) as wanted, zerocopy.open(target) as made:
            for name in wanted:
                assert torch.equal(made.get_tensor(name), wanted.get_tensor(name).resolve_conj()), kind
            said = getattr(zerocopy.load(path), "safetensors_metadata", wanted.metadata())
            assert made.metadata() == {"format": "pt", **said}, kind
    shadowing = OrderedDict(w=WEIGHT)
    vars(shadowing)["keys"] = 1
    for refused, why in (({"w": WEIGHT, "n": argparse.Namespace(lr=1)}, "Namespace"), (shadowing, "'keys'")):
        torch.save(refused, path)
        with pytest.raises(UnpicklingError, match=why):
            zerocopy.convert(path, target)
    of_python_2 = pickle({"weight": tensor(), "text": Code(b"U\x01\xff")})  # of an unknown encoding
    path.write_bytes(checkpoint(of_python_2))
    with pytest.raises(zerocopy.FormatError, match="not utf-8"):
        zerocopy.convert(path, target)
    path.write_bytes(b"PK\3\4 nothing else")
    with pytest.raises(zerocopy.FormatError, match=r"m\.pt"):
        zerocopy.convert(path, target)


def test_source_that_is_replaced_meanwhile_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_files.saved({"w": WEIGHT}))

    def replace(done: int, total: int) -> None:
        path.unlink()
        path.write_bytes(safetensors_files.saved({"w": WEIGHT + 1}))

    with pytest.raises(OSError) as caught:
        zerocopy.convert(path, tmp_path / "m.pt", progress=replace)
    assert caught.value.errno == errno.ESTALE and caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]


def test_sources_of_both_kinds_are_merged(tmp_path: Path) -> None:
    """One takes torch, so that all are read with torch."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_files.saved({"a": WEIGHT}))
    buffer = io.BytesIO(saved_bytes({"b": WEIGHT + 1}))
    zerocopy.convert([path, buffer], tmp_path / "both.safetensors")
    found = zerocopy.load(tmp_path / "both.safetensors")
    assert torch.equal(found["a"], WEIGHT) and torch.equal(found["b"], WEIGHT + 1)
