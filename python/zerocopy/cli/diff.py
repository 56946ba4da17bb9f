"""``zerocopy diff``: how two checkpoints differ."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zerocopy.cli import equal_bytes, output, reading
from zerocopy.cli.output import escaped, say

if TYPE_CHECKING:
    from zerocopy.cli.tensor_diff import Tolerance
    from zerocopy.lazy.checkpoint import Checkpoint

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
_VERDICTS = ("same", "different")


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
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (docs/inspecting.md describes it)"
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Compare, and return the exit code."""
    return reading.run_guarded("diff", lambda: _diff(options))


def _tolerance(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, not {text!r}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, not {text!r}")
    return value


def _diff(options: argparse.Namespace) -> int:
    same = equal_bytes.compare(options.a, options.b)
    if same is not None and same.is_all:
        if options.json:
            _say_json(options, reading.FINE, [], None if options.brief else same.tensors)
        return reading.FINE

    import zerocopy

    with contextlib.ExitStack() as stack:
        a = stack.enter_context(zerocopy.open(options.a))
        b = stack.enter_context(zerocopy.open(options.b))
        found_differences = differences(a, b, options, 0 if same is None else same.end)
        if options.brief:
            differ = next(found_differences, None) is not None
            if options.json:
                _say_json(options, int(differ), [], None)
            elif differ:
                say([f"{escaped(options.a)} and {escaped(options.b)} differ"])
            return int(differ)
        if options.json:
            found = list(found_differences)
            _say_json(options, bool(found), found, len(a.keys() & b.keys()))
            return int(bool(found))
        return _print(options, found_differences, len(a.keys() & b.keys()))


def _print(options: argparse.Namespace, differences: Iterator[dict[str, Any]], both: int) -> int:
    counts = dict.fromkeys("-+!", 0)
    changed = set()
    for number, found in enumerate(differences):
        counts[found["side"]] += 1
        if found["kind"] not in ("only", "value"):
            changed.add(found["name"])
        if not options.most or number < options.most:
            say([line(found)])
    total = sum(counts.values())
    if not total:
        return reading.FINE
    if options.most and total > options.most:
        say([f"... and {total - options.most} more (--max 0 prints all)"])
    say([f"{counts['-']} only in A, {counts['+']} only in B, {counts['!']} differences in both; "
         f"{both - len(changed)} of {both} common tensors equal"])  # fmt: skip
    return reading.BAD


def _say_json(options: argparse.Namespace, code: int, found: list[dict[str, Any]], both: int | None) -> None:
    changed = {one["name"] for one in found if one["kind"] not in ("only", "value")}
    output.say_json(
        {
            **reading.head("diff"),
            "verdict": _VERDICTS[code],
            "a": options.a,
            "b": options.b,
            "rtol": options.rtol,
            "atol": options.atol,
            "tensors_in_both": both,
            "tensors_equal": None if both is None else both - len(changed),
            "differences": found,
        }
    )


def line(found: dict[str, Any]) -> str:
    """Return a difference as text."""
    name = escaped(found["name"]) or "''"
    if found["kind"] == "only":
        return f"{found['side']} {name}  {found['text']}"
    return f"! {name}: {found['kind']}: {found['text']}"


def differences(
    a: Checkpoint, b: Checkpoint, options: argparse.Namespace, equal_until: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the differences, cheap ones first: names, then what the files state, then elements.

    Tensors that end before `equal_until` in the file of `a` are known to be equal.
    """
    from zerocopy.cli.tensor_diff import Tolerance

    exact = options.rtol is None and options.atol is None
    tolerance = None if exact else Tolerance(options.rtol or 0.0, options.atol or 0.0)
    for side, one, other in (("-", a, b), ("+", b, a)):
        for name in one:
            if name not in other:
                text = _described(one.info(name))
                yield {"side": side, "kind": "only", "name": name, "text": text}
    if not options.tensors_only:
        yield from _value_differences(a, b, tolerance)
    yield from _tensor_differences(a, b, tolerance, options, equal_until)


def _described(info: Any) -> str:
    return f"{_name_of(info.dtype)} {list(info.shape)}"


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_differences(
    a: Checkpoint, b: Checkpoint, tolerance: Tolerance | None, options: argparse.Namespace, equal_until: int
) -> Iterator[dict[str, Any]]:
    from zerocopy.cli.tensor_diff import Side, compare, is_same_file

    sides = Side(a), Side(b)
    left = []
    progress = output.Progress("zerocopy diff:", sum(info.nbytes for info in a.tensors() if info.name in b))
    try:
        for name in a:
            if name not in b:
                continue
            one, other = a.info(name), b.info(name)
            difference = {"side": "!", "name": name}
            if one.dtype != other.dtype and not options.ignore_dtype:
                text = f"{_name_of(one.dtype)} | {_name_of(other.dtype)}"
                yield difference | {"kind": "dtype", "text": text}
            if one.shape != other.shape:
                yield difference | {"kind": "shape", "text": f"{list(one.shape)} | {list(other.shape)}"}
            else:
                left.append((one, other))
        # In one order for both: the first name of a group of ties stands for the group.
        names = sorted(a.keys() & b.keys())
        ties, others = (side.ties(names) for side in sides)
        for name in names:
            if ties.get(name) != others.get(name):
                text = f"{_tie(ties.get(name))} | {_tie(others.get(name))}"
                yield {"side": "!", "name": name, "kind": "ties", "text": text}
        if is_same_file(options.a, options.b):
            return
        for one, other in left:
            is_equal = one.offset is not None and one.offset + one.nbytes <= equal_until
            found = None if is_equal else compare(*sides, one, other, tolerance, brief=options.brief)
            progress.add(one.nbytes)
            if found is not None:
                yield {"side": "!", "name": one.name, "kind": "values", "text": str(found)} | _facts(found)
        for side in sides:
            side.require_unchanged()
    finally:
        progress.end()
        for side in sides:
            side.close()


def _tie(name: str | None) -> str:
    return "not tied" if name is None else f"= {escaped(name)}"


def _facts(found: Any) -> dict[str, Any]:
    if found.text:
        return {}
    return {
        "count": found.unequal,
        "elements": found.total,
        "largest": found.largest,
        "first": list(found.first),
        "a": found.a,
        "b": found.b,
    }


def _value_differences(a: Checkpoint, b: Checkpoint, tolerance: Tolerance | None) -> Iterator[dict[str, Any]]:
    from zerocopy.cli.comparison import Comparison

    values, others = a.metadata(), b.metadata()
    if {layer.container for layer in a.layers} != {layer.container for layer in b.layers}:
        # The formats differ, so this entry of .safetensors files, the name of a framework, is of one side only.
        for each in (values, others):
            each.pop("format", None)
    for side, one, other in (("-", values, others), ("+", others, values)):
        for name in one:
            if name not in other:
                yield {"side": side, "kind": "only", "name": name, "text": _shown(one[name])}
    for name in values.keys() & others.keys() if values else ():
        one, other = values[name], others[name]
        both_numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
        if tolerance and both_numbers and tolerance.holds(one, other):
            continue
        if text := Comparison().difference(one, other):
            text = text.removeprefix("object: ")
            yield {"side": "!", "kind": "value", "name": name, "text": text}


def _shown(value: Any) -> str:
    from zerocopy import display

    return f"value: {display.described(value)}"
