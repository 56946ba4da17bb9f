"""A treemap of bytes by module path, as SVG: tensors have the colors of their dtypes, modules have none."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from zerocopy import display

WIDTH, HEIGHT = 1000, 480
_MIN_AREA = WIDTH * HEIGHT / 1500  # of a rectangle that is divided further
_MIN_CHILD_AREA = 30.0  # of the boxes inside, on average: smaller ones say nothing
_MAX_DEPTH = 8
_HEADING, _CHARACTER = 15, 6.6  # height of a line, and width of a character, of the font in the template
_GAP = 1.5


@dataclass
class Node:
    """A module: the bytes of all tensors below a path, also by the class of their color."""

    path: str
    nbytes: int = 0
    tensors: int = 0
    below: dict[str, Node] = field(default_factory=dict)
    colors: Counter[str] = field(default_factory=Counter)

    def add(self, nbytes: int, color: str) -> None:
        """Count one tensor."""
        self.nbytes += nbytes
        self.tensors += 1
        self.colors[color] += nbytes


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def tree(tensors: Iterable[tuple[str, int, str]]) -> Node:
    """Return the modules of tensors, which are names, bytes and classes of colors. A tensor is a node too."""
    root = Node("")
    for name, nbytes, color in tensors:
        node = root
        node.add(nbytes, color)
        labels = name.split(".", _MAX_DEPTH - 1)
        for depth, label in enumerate(labels):
            if label not in node.below:
                node.below[label] = Node(".".join(labels[: depth + 1]))
            node = node.below[label]
            node.add(nbytes, color)
    return root


def svg(root: Node) -> str:
    """Return the picture."""
    shapes = "".join(_shapes(root, Box(0, 0, WIDTH, HEIGHT)))
    label = f"Treemap of {display.size(root.nbytes)} by module path"
    return f'<svg class="treemap" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{label}">{shapes}</svg>'


def _shapes(node: Node, box: Box) -> Iterator[str]:
    """Yield the shapes inside a node's box, level by level."""
    children = [_narrowed(child) for child in node.below.values() if child.nbytes]
    children.sort(key=lambda child: -child.nbytes)
    if box.width * box.height < _MIN_CHILD_AREA * len(children):
        return
    for child, place in zip(children, _squarified(children, box), strict=True):
        inner = Box(place.x, place.y, max(place.width - _GAP, 0.3), max(place.height - _GAP, 0.3))
        inside = ""
        if inner.width * inner.height > _MIN_AREA and inner.height > 2 * _HEADING and inner.width > 20:
            below = Box(inner.x + 2, inner.y + _HEADING, inner.width - 4, inner.height - _HEADING - 2)
            inside = "".join(_shapes(child, below))
        [(color, _)] = child.colors.most_common(1)
        yield _rectangle(
            child, child.path[len(node.path) :].lstrip("."), inner, "module" if inside else color
        )
        yield inside


def _narrowed(node: Node) -> Node:
    """Return the first module at or below a node that has several parts: one box for "mlp.experts"."""
    while len(node.below) == 1:
        [child] = node.below.values()
        if child.tensors != node.tensors:
            break
        node = child
    return node


def _rectangle(node: Node, label: str, box: Box, color: str) -> str:
    path = html.escape(display.shown(node.path))
    facts = f"{display.count(node.tensors, 'tensor')}, {display.size(node.nbytes)}"
    room = int((box.width - 6) / _CHARACTER)
    text = ""
    if room >= 3 and box.height >= _HEADING - 1:
        label = display.shown(label)
        label = label if len(label) <= room else label[: room - 1] + "…"
        text = f'<text x="{box.x + 4:.1f}" y="{box.y + 11.5:.1f}">{html.escape(label)}</text>'
    # The larger boxes can be reached by the keyboard; all of them would be too many stops.
    focus = ' tabindex="0" role="button"' if box.width * box.height > WIDTH * HEIGHT / 150 else ""
    return (
        f'<g data-path="{html.escape(node.path)}"{focus}><title>{path}: {facts}</title>'
        f'<rect class="{color}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"/>'
        f"{text}</g>"
    )


def _squarified(nodes: list[Node], box: Box) -> Iterator[Box]:
    """Yield a box for each node, the largest first, with sides as equal as can be (Bruls, Huizing, van Wijk)."""
    whole = sum(node.nbytes for node in nodes)
    if not whole:
        return
    scale = box.width * box.height / whole
    areas = [node.nbytes * scale for node in nodes]
    begin = 0
    while begin < len(areas):
        side = max(min(box.width, box.height), 1e-9)
        end, total = begin + 1, areas[begin]
        worst = _worst(areas[begin], areas[begin], total, side)
        while end < len(areas):
            wider = _worst(areas[begin], areas[end], total + areas[end], side)
            if wider > worst:
                break
            worst, total, end = wider, total + areas[end], end + 1
        yield from _row(areas[begin:end], box, total)
        thick = total / side
        if box.width >= box.height:
            box = Box(box.x + thick, box.y, max(box.width - thick, 0), box.height)
        else:
            box = Box(box.x, box.y + thick, box.width, max(box.height - thick, 0))
        begin = end


def _worst(largest: float, smallest: float, total: float, side: float) -> float:
    return max(side * side * largest / (total * total), total * total / (side * side * smallest))


def _row(areas: list[float], box: Box, total: float) -> Iterator[Box]:
    along = 0.0
    if box.width >= box.height:
        thick = total / max(box.height, 1e-9)
        for area in areas:
            yield Box(box.x, box.y + along, thick, area / thick)
            along += area / thick
    else:
        thick = total / max(box.width, 1e-9)
        for area in areas:
            yield Box(box.x + along, box.y, area / thick, thick)
            along += area / thick
