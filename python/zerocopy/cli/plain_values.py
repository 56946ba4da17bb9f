"""Shows the values of a checkpoint that are not tensors. Values of one dict share lines, and long lists are folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from zerocopy import display
from zerocopy.catalogue.contents import Value
from zerocopy.cli import output
from zerocopy.cli.output import escaped

_MAX_LINES = 20
_MAX_VALUE = 60
_MAX_SPELLED = 4  # items of a list that are shown one by one
_NOUNS = {"int": "integers", "str": "strings"}  # the others have an s behind
_INDENT = "  "


def lines(values: Sequence[Value], *, every: bool) -> Iterator[str]:
    """Yield lines for values: all, one by one, or as many as fit a screen."""
    if not values:
        return
    several = f"{display.count(len(values), 'value')} that are not tensors:"
    yield output.bold(several if len(values) > 1 else "1 value that is not a tensor:")
    if every:
        yield from (f"{_INDENT}{_name(value.name)}: {described(value)}" for value in values)
        return
    found = list(_folded(values))
    yield from found[:_MAX_LINES]
    if len(found) > _MAX_LINES:
        yield f"{_INDENT}and {len(found) - _MAX_LINES} more lines: --all prints them"


def _name(text: str) -> str:
    return output.visible(text) or "''"


def described(value: Value) -> str:
    """Return a value that is not a tensor for people: itself, or its kind and length."""
    kind, held = value.kind, value.value
    if kind in ("None", "bool", "float", "complex"):
        return str(held)
    if kind == "int":
        return str(held) if held is not None else "an int of more than 1000 bytes"
    if kind == "str":
        return f"'{escaped(held, _MAX_VALUE)}'"
    if kind in ("bytes", "bytearray"):
        return f"{kind} of {held} bytes"
    if kind in ("object", "global", "storage", "torch.device"):
        return f"{kind} {escaped(held)}"
    if isinstance(held, int):
        return f"{kind} of {display.count(held, 'item')}"
    return f"{kind} {escaped(str(held))}"


def _folded(values: Sequence[Value]) -> Iterator[str]:
    """Yield lines with the values of one parent each: "args: lr 0.001, name 'x'"."""
    lists: list[list[Value]] = []
    for value in values:
        parent, _, index = value.name.rpartition(".")
        if parent and lists and lists[-1][0].name == f"{parent}.0" and index == str(len(lists[-1])):
            lists[-1].append(value)
        else:
            lists.append([value])
    for parent, group in groupby(map(_item, lists), lambda item: item[0].rpartition(".")[0]):
        if parent:
            texts = [f"{_name(name.rpartition('.')[2])} {text}" for name, text in group]
            yield from _wrapped(f"{_name(parent)}:", texts)
        else:
            yield from (f"{_INDENT}{_name(name)}: {text}" for name, text in group)


def _item(values: list[Value]) -> tuple[str, str]:
    """Return the name and the text of a value, or of a list."""
    first = values[0]
    if not first.name.endswith(".0"):
        return first.name, described(first)
    name, kinds = first.name.rpartition(".")[0], {value.kind for value in values}
    if len(values) <= _MAX_SPELLED:
        return name, f"[{', '.join(map(described, values))}]"
    held = [value.value for value in values]
    if kinds <= {"int"} and None not in held:
        least, most = min(held), max(held)
        is_run = held == list(range(least, least + len(held)))
        return (
            name,
            f"{len(held)} integers {least}..{most}"
            if is_run
            else f"{len(held)} integers from {least} to {most}",
        )
    if kinds == {"float"}:
        return name, f"{len(held)} floats from {min(held)} to {max(held)}"
    what = _NOUNS.get(first.kind, first.kind + "s") if len(kinds) == 1 else "values"
    return name, f"{len(held)} {what}: {', '.join(map(described, values[:2]))}, ..."


def _wrapped(head: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield texts behind a head, joined by commas, in lines as long as the terminal is wide."""
    line = _INDENT + head
    for number, text in enumerate(texts):
        piece = text + ("," if number < len(texts) - 1 else "")
        if number and display.columns(line) + 1 + display.columns(piece) > output.width():
            yield line
            line = _INDENT * 2 + piece
        else:
            line += f" {piece}"
    yield line
