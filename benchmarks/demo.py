"""The demonstration: one BERT-sized checkpoint, torch.load and zerocopy.load side by side."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

if not __package__:  # run as a file: make the folder above the package the place to import from
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.data.files import Files
from benchmarks.data.objects import difference, spans_of
from benchmarks.engine.kernels import load_kernels
from benchmarks.engine.measure import Series, interleave
from benchmarks.engine.memory import private_memory
from benchmarks.engine.report import layout, quantity, times
from benchmarks.rows import LOADERS
from benchmarks.system.pagecache import warm

COPIES = 3
LEGEND = f"""\
time     median of rounds taken in turn, least in brackets, file in the page cache;
         "read" adds the reading of every byte; the ratio is the median of the rounds' ratios
private  memory of a fresh process that no other process can share, with {COPIES} copies loaded, kept
         and every page of them touched; "before" is Python with torch imported"""


def main() -> int:
    """Make, compare, time, count memory, print; 1 when the two results are not equal."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="zerocopy-demo-") as folder:
        path = Files(Path(folder)).path("bert.pt")
        return _show(path)


def _show(path: Path) -> int:
    ours, theirs = _load("zerocopy", path), _load("torch", path)
    print(
        f"checkpoint: {len(theirs)} tensors, {path.stat().st_size / 1e6:.0f} MB, "
        f"written by torch.save of torch {torch.__version__}"
    )
    found = difference(ours, theirs)
    if found:
        print(f"NOT EQUAL: {found}")
        return 1
    nbytes = sum(size for _, size in spans_of(ours))
    print(f"equal: structure, dtypes, strides, ties, and {nbytes:,} bytes compared bit for bit\n")
    del ours, theirs
    memory = {name: private_memory(name, path, COPIES, touch=True) for name in ("torch", "zerocopy")}
    print(_table(_timed(path), memory), LEGEND, sep="\n\n")
    return 0


def _load(name: str, path: Path) -> Any:
    return LOADERS[name].load(str(path))


def _timed(path: Path) -> dict[str, Series]:
    kernels = load_kernels()
    warm(path)
    return {
        column: interleave(lambda: _load("zerocopy", path), lambda: _load("torch", path), column, kernels)
        for column in ("ready", "consume")
    }


def _table(series: dict[str, Series], memory: dict[str, dict[str, Any]]) -> str:
    rows = [("", "", "torch.load", "zerocopy.load", "ratio", "")]
    for column, name in (("ready", "object ready"), ("consume", "ready and read")):
        found = series[column].summary()
        peer, ours = (
            f"{quantity(found[side], 's')} ({quantity(found[f'{side}_min'], 's')})"
            for side in ("peer", "ours")
        )
        rows.append(("time", name, peer, ours, times(found["ratio"]), ""))
    torch_memory, our_memory = memory["torch"], memory["zerocopy"]
    for name, key in (("before", "before"), (f"{COPIES} copies", "last")):
        peer, ours = torch_memory[key]["Anonymous"], our_memory[key]["Anonymous"]
        rows.append(("private", name, quantity(peer, "B"), quantity(ours, "B"), "", ""))
    peer, ours = torch_memory["per_copy"], our_memory["per_copy"]
    ratio = times(peer / max(1.0, ours)) if ours > 0 else ""
    rows.append(("private", "each further copy", quantity(peer, "B"), quantity(ours, "B"), ratio, ""))
    return layout(rows)


if __name__ == "__main__":
    sys.exit(main())
