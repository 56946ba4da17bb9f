"""The whole way from bytes to a value, through the binding: zip and legacy files, loaded safely in every way."""

from __future__ import annotations

import contextlib
import io
import random
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import allowed  # noqa: E402
import archives  # noqa: E402
import assembler  # noqa: E402
import engine  # noqa: E402
import make_seeds  # noqa: E402
import mutate_bytes  # noqa: E402
import mutate_legacy  # noqa: E402
import mutate_zip  # noqa: E402
import refusals  # noqa: E402
import tar_files  # noqa: E402
import torch  # noqa: E402
import value_check  # noqa: E402
from conftest import saved_bytes  # noqa: E402
from kinds import dense, layouts, subclasses, training, values  # noqa: E402

import zerocopy  # noqa: E402

_GROUPS = (dense.DTYPES, dense.TIES, subclasses.FLAGS, layouts.SPARSE, layouts.QUANTIZED, layouts.NESTED,
           layouts.WITHOUT_DATA, values.PLAIN, training.STATE)  # fmt: skip
_BEFORE = b"PK\5\6junk"  # is not the reader's
#: The key of a storage in a legacy file, which differs from run to run.
_ADDRESS = re.compile(rb"X[\x08-\x10]\0\0\0\d{8,16}")
_DONORS = list(make_seeds.pickles().values())


def _written_by_torch() -> Iterator[tuple[str, bytes]]:
    for kind in (kind for group in _GROUPS for kind in group.kinds if kind.is_there()):
        for name, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)  # the same seeds in each run
                    content = saved_bytes(kind.make(), **options)
            except Exception:  # not every kind can be written by every release, or in both formats
                continue
            addresses = set(_ADDRESS.findall(content))
            if len(content) < 16_384 and len(addresses) < 2:
                yield f"{name} {kind.name}", _ADDRESS.sub(b"X\1\0\0\x007", content)


def seeds() -> dict[str, bytes]:
    """Return files of every format, written by hand and by the running torch."""
    mine = {"mine": assembler.new(assembler.name("allowed", "Mine"), 1), "tensor": assembler.tensor()}
    tensors = [torch.arange(5.0), torch.arange(3, dtype=torch.int16), torch.ones(2, dtype=torch.complex64)]
    found = {f"zip {name}": seed for name, seed in make_seeds.archives().items()}
    found |= {f"legacy {name}": seed for name, seed in make_seeds.legacy_files().items()}
    found |= {f"pickle {name}": assembler.checkpoint(seed) for name, seed in make_seeds.pickles().items()}
    found |= {"allowed": assembler.checkpoint(assembler.pickle(mine)), "tar": tar_files.checkpoint()}
    found |= {"big-endian": archives.big_endian(tensors)}
    found |= dict(_written_by_torch())
    zips = [name for name in found if name.startswith("zip ")]
    deflated = {f"deflated {name}": archives.rezip(found[name], zipfile.ZIP_DEFLATED) for name in zips[::5]}
    return found | deflated


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return a file changed: with its format kept whole around the change as a rule, blindly now and then."""
    if rng.random() < 0.85:
        # An earlier change may have left nothing that zipfile or pickletools can read.
        with contextlib.suppress(Exception):
            if data[:2] == b"PK":
                return mutate_zip.mutate(data, rng, _DONORS)
            return mutate_legacy.mutate(data, rng, _DONORS)
    return mutate_bytes.mutate_bytes(data, rng)


def _outcome(f: Any, **options: Any) -> tuple[str, Any]:
    """Return what came of a load, and all there is to see of it. Raises what a load must not raise."""
    try:
        with zerocopy.safe_globals([allowed.Mine, allowed.MyDict]):
            value = zerocopy.load(f, **options)
    except refusals.CLEAN as error:
        assert len(str(error)) <= refusals.MAX_MESSAGE_LENGTH + 200, (
            f"a message of {len(str(error))} characters"
        )
        return "refused", type(error).__name__
    except RuntimeError as error:
        if refusals.is_of_a_location(error):
            return "elsewhere", "RuntimeError"
        raise
    return "loaded", value_check.read_all(value)


def _difference(one: Any, other: Any) -> str:
    """Return two outcomes from a little before the first item in which they differ."""
    left, right = (
        [*outcome[:1], *outcome[1]] if len(outcome) > 1 else list(outcome) for outcome in (one, other)
    )
    at = next((i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, at - 5)
    return f"not the same from item {at} on: {left[begin : at + 5]!r:.900} and {right[begin : at + 5]!r:.900}"


def check(data: bytes) -> str:
    """Load from a mapped file, from one that is read, from memory, from where a file stands: the same comes of it."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file, tempfile.TemporaryFile() as longer:
        file.write(data)
        file.flush()
        longer.write(_BEFORE + data)
        longer.seek(len(_BEFORE))
        outcomes = [
            _outcome(file.name),
            _outcome(file.name, backend="pread"),
            _outcome(data),
            _outcome(io.BytesIO(data)),
            _outcome(longer),
        ]
    for other in outcomes[1:]:
        assert other == outcomes[0], _difference(outcomes[0], other)
    return outcomes[0][0]


TARGET = engine.Target("load", seeds, mutate, check)

if __name__ == "__main__":
    engine.main(TARGET)
