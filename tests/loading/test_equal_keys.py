"""Keys of a dict that are equal in Python: every reader takes the last value, as torch does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import assembler as a
import pytest
import torch
from conftest import stock_load

import zerocopy

KEYS = {
    "text": ("w", "w"),
    "long texts": ("w" * 100, "w" * 100),
    "1, True": (1, True),
    "1.0, 1": (1.0, 1),
    "True, 1.0": (True, 1.0),
    "0, -0.0": (0, -0.0),
    "tuples": ((1, ("x",)), (True, ("x",))),
    "bytes": (b"w", b"w"),
    "None": (None, None),
    "2**62": (2**62, float(2**62)),
    "text, bytes": ("w", b"w"),  # not equal
    "1, text": (1, "1"),
    "tuple, number": ((1,), 1),
}


def file_of(folder: Path, *keys: Any) -> Path:
    """Write a dict with these keys in this order, which no pickler does: each has another tensor."""
    values = [a.tensor(a.storage(str(number))) for number, _ in enumerate(keys)]
    content = torch.zeros(a.NUMEL).numpy()
    storages = {str(number): (content + number).tobytes() for number, _ in enumerate(keys)}
    pairs = b"".join(a.code(key) + value for key, value in zip(keys, values, strict=True))
    path = folder / "model.pt"
    path.write_bytes(a.checkpoint(a.pickle(a.Code(a.EMPTY_DICT + a.MARK + pairs + a.SETITEMS)), storages))
    return path


def firsts(values: Any) -> list[float]:
    return [float(value.flatten()[0]) for value in values]


@pytest.mark.parametrize("title", KEYS)
def test_every_reader_takes_the_last(tmp_path: Path, title: str) -> None:
    path = file_of(tmp_path, KEYS[title][0], "between", KEYS[title][1], "end")
    expected = stock_load(path)
    for loaded in (
        zerocopy.load(path),
        zerocopy.lazy_load(path),
        zerocopy.lazy_load(path, weights_only=False),
    ):
        assert list(map(repr, loaded)) == list(map(repr, expected))
        assert firsts(loaded.values()) == firsts(expected.values())
    with zerocopy.open(path) as opened:
        names = list(opened)
        assert firsts(map(opened.get_tensor, names)) == firsts(expected.values())
        assert firsts(opened.get_slice(name)[:] for name in names) == firsts(expected.values())
        assert firsts(opened.values()) == firsts(expected.values())
    chosen = zerocopy.lazy_load(path, keys=names)
    assert list(map(repr, chosen)) == list(map(repr, expected))
    assert firsts(chosen.values()) == firsts(expected.values())


def test_converted(tmp_path: Path) -> None:
    path, target = file_of(tmp_path, "w", "between", "w"), tmp_path / "model.safetensors"
    zerocopy.convert(path, target)
    expected, converted = stock_load(path), zerocopy.load(target)
    assert {name: firsts([tensor]) for name, tensor in converted.items()} == {
        name: firsts([tensor]) for name, tensor in expected.items()
    }


def test_dicts_in_their_places(tmp_path: Path) -> None:
    """A dict gives way to a tensor, and a tensor to a dict."""
    inner = a.Code(a.EMPTY_DICT + a.code("x") + a.tensor(a.storage("0")) + a.SETITEM)
    for values in itertools.permutations([inner, a.tensor(a.storage("1")), a.code(5)]):
        pairs = b"".join(a.code("w") + value for value in values)
        path = tmp_path / "model.pt"
        storages = {"0": bytes(4 * a.NUMEL), "1": bytes(4 * a.NUMEL)}
        path.write_bytes(a.checkpoint(a.pickle(a.Code(a.EMPTY_DICT + a.MARK + pairs + a.SETITEMS)), storages))
        expected = stock_load(path)["w"]
        with zerocopy.open(path) as opened:
            names = {dict: ["w.x"], int: []}.get(type(expected), ["w"])
            assert list(opened) == names
            assert set(opened.metadata()) == ({"w"} if isinstance(expected, int) else set())
