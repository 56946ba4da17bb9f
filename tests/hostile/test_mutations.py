"""Files of the running torch's own writer, cut at every byte and with every bit turned over."""

from __future__ import annotations

import collections
import json
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, saved_bytes
from refusals import CLEAN, is_of_a_location

import zerocopy

BODY = """
    import json, sys
    sys.path[:0] = json.loads(sys.argv[3])
    import test_mutations
    test_mutations.main(sys.argv[1], int(sys.argv[2]))
"""
FORMS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
MEMORY, SECONDS = 2**30, 60  # of the processor


def small(form: str) -> bytes:
    return saved_bytes({"weight": torch.arange(3.0)}, **FORMS[form])


def is_sensible(value: Any) -> bool:
    """After a flipped bit, text, keys and numbers may differ. Structure and sizes may not grow."""
    if isinstance(value, dict):
        return len(value) <= 1 and all(map(is_sensible, value.values()))
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() <= 12 if hasattr(value, "untyped_storage") else True
    return isinstance(value, (list, tuple, str, int, float, set, torch.Size, type, torch.dtype, type(None)))


def judge(data: bytes) -> str:
    try:
        value = zerocopy.load(data)
    except CLEAN as error:
        assert len(str(error)) < 10_000
        return "refused"
    except RuntimeError as error:
        if is_of_a_location(error):
            return "location"
        raise
    assert is_sensible(value), repr(value)[:500]
    return "loaded"


def mutations(data: bytes, step: int) -> Iterator[tuple[str, bytes]]:
    for at in range(0, len(data), step):
        yield f"cut at {at}", data[:at]
        for mask in (0xFF, *(1 << bit for bit in range(8))):
            turned = bytearray(data)
            turned[at] ^= mask
            yield f"byte {at} ^ {mask:#x}", bytes(turned)


def main(form: str, step: int) -> None:
    """Print how many mutations came to what, and what was wrong with others. Bounded."""
    torch.set_num_threads(1)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    whole, outcomes, failures = small(form), collections.Counter(), []
    for what, data in mutations(whole, step):
        try:
            outcome = judge(data)
            assert outcome != "loaded" or not what.startswith("cut"), "a cut file loads"
            outcomes[outcome] += 1
        except BaseException as error:
            failures.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    print(json.dumps([outcomes, failures]))


each_step = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow("at every byte"))])


@each_step
@pytest.mark.parametrize("form", FORMS)
def test_cuts_and_bits_are_refused_or_make_sense(form: str, step: int, forked: Child) -> None:
    done = forked(BODY, form, step, json.dumps(sys.path), timeout=10 * SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes, failures = json.loads(done.stdout)
    assert not failures, f"{len(failures)}: " + "\n".join(failures[:20])
    assert outcomes["refused"] > sum(outcomes.values()) / 10


@each_step
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_cut_of_a_mapped_file_is_refused(form: str, weights_only: bool, step: int, tmp_path: Path) -> None:
    """Through a mapping, where what is missing would be a bus error. Also where the pickle may run."""
    path = tmp_path / "checkpoint.pt"
    data = small(form)
    for at in range(0, len(data), step):
        path.write_bytes(data[:at])
        with pytest.raises(CLEAN):
            zerocopy.load(path, weights_only=weights_only)
    path.write_bytes(data)
    assert zerocopy.load(path, weights_only=weights_only)["weight"].tolist() == [0, 1, 2]
