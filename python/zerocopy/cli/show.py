"""``zerocopy show``: the values of a tensor, or of a part, and statistics of them."""

from __future__ import annotations

import argparse
import math
import reprlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from zerocopy import display
from zerocopy.catalogue.contents import Contents, Entry, Value
from zerocopy.cli import output, reading, runner
from zerocopy.cli.output import escaped
from zerocopy.lazy.names import no_such_name

if TYPE_CHECKING:
    import torch

    from zerocopy.cli.statistics import Statistics

DESCRIPTION = """
Prints a tensor of a checkpoint, or a part of it, with minimum, maximum, mean, standard deviation, the numbers of NaN,
infinities and zeros, and a histogram. Only what is shown is read. A value that is not a tensor is printed as it is.
"""

EPILOG = """
exit codes:
  0  shown
  2  trouble: the file cannot be read, or has no such name
130 after an interrupt.

examples:
  $ zerocopy show model.safetensors encoder.weight
  $ zerocopy show model.pt 'model.weight[0, :8]'
  $ zerocopy show --json model.pt step
"""

_MAX_VALUES = 1000  # elements that JSON lists
_SIMPLE = ("None", "bool", "int", "float", "complex", "str")
_MAX_REPR = 4000
_BAR = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_file(parser)
    parser.add_argument(
        "name", metavar="NAME[SLICE]", help="a name as zerocopy ls prints it, and perhaps a part: [0, :8]"
    )
    runner.add_json(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Show, and return the exit code."""
    with reading.contents(options.file) as (path, contents):
        return _show(options, path, contents)


def _show(options: argparse.Namespace, path: str, contents: Contents) -> int:
    entries = {entry.name: entry for entry in contents.entries}
    values = {value.name: value for value in contents.values}
    values |= {
        name: Value(name, "str", text) for name, text in contents.metadata.items() if name not in values
    }
    known = {**entries, **values}
    name, index_text = _name_of(options.name, known), ""
    if name in values and name not in entries:
        _show_value(options, path, values[name])
        return runner.FINE
    if name not in entries:
        from zerocopy.cli.parts import split_name

        name, index_text = split_name(options.name)
        name = _name_of(name, known)
    if name in values and name not in entries:
        raise runner.Trouble(
            f"{escaped(name)} is not a tensor ({values[name].kind}): name it without [{index_text}]"
        )
    if name not in entries:
        error = no_such_name(options.file, output.printable(name), [escaped(each) for each in known])
        raise runner.Trouble(str(error.args[0]))
    _show_tensor(options, path, entries[name], index_text)
    return runner.FINE


def _name_of(text: str, names: Iterable[str]) -> str:
    """Return the name that `ls` prints as this text, or else the text itself."""
    if "\\" not in text:
        return text
    cell = text.replace(" ", "\\x20")  # as in the table of `ls`
    return next((name for name in names if escaped(name, len(name)).replace(" ", "\\x20") == cell), text)


def _show_value(options: argparse.Namespace, path: str, value: Value) -> None:
    if value.kind in _SIMPLE and value.value is not None:
        text = str(value.value) if value.kind == "complex" else repr(value.value)
    else:
        text = _repr_of(path, value)
    text = output.printable(text, _MAX_REPR)
    if options.json:
        said = {"path": options.file, "name": value.name, "kind": value.kind, "repr": text}
        output.say_json(runner.head("show") | said)
    else:
        output.say([text])


def _repr_of(path: str, value: Value) -> str:
    """Return the repr of a value that has to be built first, objects of unknown classes as stubs."""
    from zerocopy.lazy.opening import open as open_checkpoint
    from zerocopy.loading.objects.stubs import Stub

    if value.kind == "None":
        return "None"
    with open_checkpoint(path, unknown="stub", device="cpu") as checkpoint:
        shortening = reprlib.Repr()
        shortening.maxdict = shortening.maxlist = shortening.maxtuple = shortening.maxset = 50
        shortening.maxstring = shortening.maxother = 1000
        made = checkpoint.metadata()[value.name]
        names = ("arguments", "state", "items", "entries") if isinstance(made, Stub) else ()
        parts = ((name, getattr(made, name)) for name in names)
        return shortening.repr(made) + "".join(
            f" {name}={shortening.repr(part)}" for name, part in parts if part
        )


def _show_tensor(options: argparse.Namespace, path: str, entry: Entry, index_text: str) -> None:
    import torch

    from zerocopy.cli import parts, statistics

    part = parts.read_part(path, entry, parts.index_of(index_text))
    found: Statistics | None = None
    try:
        found = statistics.statistics_of(part)
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
        runner.Trouble,
    ) as error:  # a dtype without arithmetic
        output.print_error(
            f"zerocopy show: no statistics: {output.printable(str(error).partition(chr(10))[0])}"
        )
    if options.json:
        output.say_json(runner.head("show") | _json_of(options, entry, index_text, part, found))
        return
    torch.set_printoptions(linewidth=output.width())
    output.say(_lines(entry, index_text, part, found))


def _lines(entry: Entry, index_text: str, part: torch.Tensor, found: Statistics | None) -> Iterator[str]:
    where = "" if entry.offset is None else f" at {entry.offset} of {escaped(entry.file)}"
    yield output.bold(
        f"{escaped(entry.name)}: {entry.dtype} {entry.spelled_shape()}, {display.size(entry.nbytes)}{where}"
    )
    if entry.same_as or entry.shares_with:
        tie = (
            f"= {escaped(entry.same_as)}"
            if entry.same_as
            else f"over the storage of {escaped(entry.shares_with)}"
        )
        yield f"  {tie}"
    if index_text:
        yield f"  [{escaped(index_text)}]: {' x '.join(map(str, part.shape)) or 'scalar'}"
    yield _text_of(part.detach())
    if found is not None:
        yield from _statistics(found, "stored element" if "sparse" in str(part.layout) else "element")


def _text_of(part: torch.Tensor) -> str:
    import torch

    try:
        return str(part)
    except RuntimeError:  # torch does not print this dtype: its bits are shown
        return f"bits: {part.view({1: torch.uint8, 2: torch.int16}[part.element_size()])}"


def _statistics(found: Statistics, what: str) -> Iterator[str]:
    digits = _digits(found.minimum, found.maximum)

    def spelled(number: float | int | None) -> str:
        if isinstance(number, float):
            return f"{number:.{digits + 2}g}"
        return "-" if number is None else str(number)

    yield (
        f"min {spelled(found.minimum)}  max {spelled(found.maximum)}  mean {spelled(found.mean)}  "
        f"std {spelled(found.std)}"
    )
    infinite = found.positive_infinity + found.negative_infinity
    yield f"{display.count(found.elements, what)}: {found.nan} NaN, {infinite} Inf, {found.zero} zero"
    most = max(found.bins, default=0)
    for low, high, count in zip(found.edges, found.edges[1:], found.bins, strict=False):
        bar = "#" * math.ceil(_BAR * count / most) if most else ""
        edges = f"{low:>{digits + 8}.{digits}g} .. {high:<{digits + 8}.{digits}g}"
        yield f"{edges} {count:>12} {bar}"[: output.width()].rstrip()


def _digits(minimum: float | None, maximum: float | None) -> int:
    """Return how many digits distinguish the numbers in a range: more than 4 if its ends are close together."""
    if minimum is None or maximum is None or minimum == maximum:
        return 4
    ratio = (maximum / 2 - minimum / 2) / max(abs(minimum), abs(maximum))
    return min(4 + math.ceil(max(0.0, -math.log10(2 * ratio))), 17) if ratio else 17


def _json_of(
    options: argparse.Namespace, entry: Entry, index_text: str, part: torch.Tensor, found: Statistics | None
) -> dict[str, Any]:
    from zerocopy.cli import statistics

    return {
        "path": options.file,
        "name": entry.name,
        "kind": "tensor",
        "dtype": entry.dtype,
        "shape": entry.shape,
        "bytes": entry.nbytes,
        "file": entry.file,
        "offset": entry.offset,
        "slice": index_text or None,
        "shown_shape": [
            size if isinstance(size, int) else -1 for size in part.shape
        ],  # nested: no one number
        "statistics": None if found is None else statistics.as_json(found),
        "values": _values_of(part),
    }


def _values_of(part: torch.Tensor) -> Any:
    import torch

    if part.layout is not torch.strided or part.numel() > _MAX_VALUES:
        return None
    part = part.dequantize() if part.is_quantized else part
    try:
        return output.plain(part.detach().tolist())
    except RuntimeError:  # a dtype whose elements are not Python numbers
        return None
