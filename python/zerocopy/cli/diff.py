"""``zerocopy diff``: how two checkpoints differ."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zerocopy import display
from zerocopy.cli import elements, output, runner, sides
from zerocopy.cli.output import escaped, say

if TYPE_CHECKING:
    from zerocopy.catalogue.contents import Entry

DESCRIPTION = """
Compares two checkpoints of any formats: the names of tensors, dtypes, shapes, ties, elements, and values that are not
tensors. Each checkpoint is a file, an index of shards, or a folder. Tensors are compared piece by piece, in little
memory. Without a tolerance elements are equal if their bits are: NaN equals the same NaN, and 0.0 differs from -0.0.
With --rtol or --atol elements are equal if |a - b| <= atol + rtol * |b|; every NaN then equals every NaN. Tensors of
different dtypes differ; their elements are compared as well, by value.
"""

EPILOG = """
lines:
  - NAME    only in A
  + NAME    only in B
  ! NAME    in both, but different; A's side is shown first

exit codes:
  0  the checkpoints are the same; nothing is printed
  1  they differ
  2  trouble: one line on standard error says why
130 after an interrupt.

example:
  $ zerocopy diff old.pt new.pt
  $ zerocopy diff --rtol 1e-2 --ignore-dtype model.pt model-bf16.safetensors
"""

_MAX_LINES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("a", metavar="A", help="a checkpoint: a file, an index, a folder")
    parser.add_argument("b", metavar="B", help="the other checkpoint")
    parser.add_argument("--rtol", type=_tolerance, metavar="X", help="relative tolerance (default: 0)")
    parser.add_argument("--atol", type=_tolerance, metavar="X", help="absolute tolerance (default: 0)")
    parser.add_argument("--ignore-dtype", action="store_true", help="compare values only, not dtypes")
    parser.add_argument(
        "--tensors-only",
        action="store_true",
        help="compare tensors only: no steps, settings or metadata",
    )
    parser.add_argument(
        "--unknown",
        choices=("refuse", "stub"),
        default="refuse",
        help="objects of classes that are not allowed: refuse the file, or compare all else (default: refuse)",
    )
    parser.add_argument(
        "-q",
        "--brief",
        action="store_true",
        help="print only whether they differ; stop at the first difference",
    )
    parser.add_argument(
        "--max",
        dest="most",
        type=_count,
        default=_MAX_LINES,
        metavar="N",
        help=f"print at most N lines of differences; 0 prints all (default: {_MAX_LINES})",
    )
    runner.add_json(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compare, and return the exit code."""
    is_exact = options.rtol is None and options.atol is None
    with contextlib.suppress(sides.NeedsTorch):
        a, b = sides.both(options.a, options.b)
        both = len(a.entries.keys() & b.entries.keys())
        if is_exact:
            return _report(options, differences(a, b, options), both)
        # Equal bits are equal with any tolerance.
        exact = argparse.Namespace(**{**vars(options), "rtol": None, "atol": None, "brief": True})
        if next(differences(a, b, exact), None) is None:
            return _report(options, iter(()), both)

    import zerocopy
    from zerocopy.cli.tensor_diff import TorchSide

    unknown: Any = "stub" if options.tensors_only else options.unknown
    with (
        zerocopy.open(options.a, device="cpu", unknown=unknown) as one,
        zerocopy.open(options.b, device="cpu", unknown=unknown) as other,
    ):
        a, b = TorchSide(one), TorchSide(other)
        both = len(a.entries.keys() & b.entries.keys())
        return _report(options, differences(a, b, options), both)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, such as 1e-5, not {text!r}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, not {text!r}")
    return int(text)


def _report(options: argparse.Namespace, differences: Iterator[dict[str, Any]], both: int) -> int:
    """Print differences as they are found, and return the exit code."""
    counts: Counter[str] = Counter()
    changed, found = set(), []
    for number, each in enumerate(differences):
        counts[each["side"]] += 1
        if options.brief:
            break
        if each["kind"] not in ("only", "value"):
            changed.add(each["name"])
        if options.json:
            found.append(each)
        elif not options.most or number < options.most:
            say([line(each)])
    total = counts.total()
    if options.json:
        output.say_json(
            {
                **runner.head("diff"),
                "verdict": "different" if total else "same",
                "a": options.a,
                "b": options.b,
                "rtol": options.rtol,
                "atol": options.atol,
                "tensors_in_both": None if options.brief else both,
                "tensors_equal": None if options.brief else both - len(changed),
                "differences": found,
            }
        )
    elif total and options.brief:
        say([f"{escaped(options.a)} and {escaped(options.b)} differ"])
    elif total:
        if options.most and total > options.most:
            say([f"... and {total - options.most} more (--max 0 prints all)"])
        say([f"{counts['-']} only in A, {counts['+']} only in B, {counts['!']} differences in both; "
             f"{both - len(changed)} of {both} common tensors equal"])  # fmt: skip
    return runner.BAD if total else runner.FINE


def line(found: dict[str, Any]) -> str:
    """Return a difference as text."""
    name = output.named(found["name"])
    if found["kind"] == "only":
        return f"{found['side']} {name}  {found['text']}"
    return f"! {name}: {found['kind']}: {found['text']}"


def differences(a: sides.Side, b: sides.Side, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the differences, cheap ones first: names, then what the files state, then elements. Close both sides."""
    exact = options.rtol is None and options.atol is None
    tolerance = None if exact else elements.Tolerance(options.rtol or 0.0, options.atol or 0.0)
    try:
        for side, one, other in (("-", a, b), ("+", b, a)):
            for name, entry in one.entries.items():
                if name not in other.entries:
                    text = f"{entry.dtype} {list(entry.shape or ())}"
                    yield {"side": side, "kind": "only", "name": name, "text": text}
        if not options.tensors_only:
            yield from _value_differences(a, b, tolerance)
        yield from _tensor_differences(a, b, tolerance, options)
    finally:
        a.close()
        b.close()


def _tensor_differences(
    a: sides.Side, b: sides.Side, tolerance: elements.Tolerance | None, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    left: list[tuple[Entry, Entry]] = []
    common = [name for name in a.entries if name in b.entries]
    for name in common:
        one, other = a.entries[name], b.entries[name]
        difference = {"side": "!", "name": name}
        if one.dtype != other.dtype and not options.ignore_dtype:
            yield difference | {"kind": "dtype", "text": f"{one.dtype} | {other.dtype}"}
        if one.shape != other.shape:
            text = f"{list(one.shape or ())} | {list(other.shape or ())}"
            yield difference | {"kind": "shape", "text": text}
        else:
            left.append((one, other))
    # Sorted, so that on both sides the same name is the first of a group of ties, and stands for the group.
    names = sorted(common)
    ties, others = a.ties(names), b.ties(names)
    for name in names:
        if ties.get(name) != others.get(name):
            text = f"{_tie(ties.get(name))} | {_tie(others.get(name))}"
            yield {"side": "!", "name": name, "kind": "ties", "text": text}
    if runner.is_same_file(options.a, options.b):
        return
    with output.Progress("zerocopy diff:", sum(one.nbytes for one, _ in left)) as progress:
        for one, other in left:
            found = a.compare(b, one, other, tolerance, brief=options.brief)
            progress.add(one.nbytes)
            if found is not None:
                difference = {"side": "!", "name": one.name, "kind": "values", "text": ""}
                yield difference | ({} if found.text else dataclasses.asdict(found)) | {"text": str(found)}
    a.require_unchanged()
    b.require_unchanged()


def _tie(name: str | None) -> str:
    return "not tied" if name is None else f"= {escaped(name)}"


def _value_differences(
    a: sides.Side, b: sides.Side, tolerance: elements.Tolerance | None
) -> Iterator[dict[str, Any]]:
    values, others = a.values(), b.values()
    if a.containers != b.containers:
        # The formats differ, so only one side has this entry of .safetensors files, the name of a framework.
        for each in (values, others):
            each.pop("format", None)
    for side, one, other in (("-", values, others), ("+", others, values)):
        for name in one:
            if name not in other:
                text = f"value: {display.described(one[name])}"
                yield {"side": side, "kind": "only", "name": name, "text": text}
    for name, one in values.items():
        if name not in others:
            continue
        other = others[name]
        both_numbers = all(isinstance(each, (int, float, complex)) for each in (one, other))
        if tolerance and both_numbers and tolerance.holds(one, other):
            continue
        if text := a.value_difference(one, other):
            text = text.removeprefix("object: ")
            yield {"side": "!", "kind": "value", "name": name, "text": text}
