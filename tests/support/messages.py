"""Collects the messages that the sources can print: errors, warnings and log lines of Python and C++."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prose import ROOT, dotted, nodes, text

_LOG_CALLS = {"debug", "info", "warning", "error", "exception"}
_EXCEPTION = re.compile(r"(^|\.)_?[A-Z]\w*(Error|Exception|Exit|Warning|Interrupt)$|(^|\.)[a-z_]\w*_error$")
_CPP_THROW = re.compile(r"\bthrow\s+((?:\w+::)*\w+)\s*\((.*?)\);", re.S)


class Message(NamedTuple):
    """One message: `kind` is the exception's class, "warning", or "log: " and the level; braces stand for values."""

    file: str
    kind: str
    text: str


def collected() -> list[Message]:
    """Return all messages of python/ and csrc/, in the order of the files."""
    found: list[Message] = []
    for path in sorted(ROOT.glob("python/zerocopy/**/*.py")):
        found += [Message(_name(path), *row) for row in _in_python(nodes(path))]
    for path in sorted([*ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h")]):
        found += [Message(_name(path), *row) for row in _in_cpp(text(path))]
    return found


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _in_python(tree: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in tree:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = dotted(node.func) or ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if _EXCEPTION.search(called):
            kind, argument = name, node.args[-1 if name == "OSError" and len(node.args) == 2 else 0]
        elif called == "warnings.warn":
            kind, argument = "warning", node.args[0]
        elif name in _LOG_CALLS and "log" in called.lower():
            kind, argument = f"log: {name}", node.args[0]
        else:
            continue
        for template in _texts(argument):
            yield kind, template


def _texts(node: ast.expr) -> Iterator[str]:
    """Return the templates of an expression: literals, f-strings, sums and choices of these."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_inner(part)}}}"
            for part in node.values
        )
        if re.search(r"[a-z]", re.sub(r"\{.*?\}", "", text)):
            yield text
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [next(_texts(side), f"{{{ast.unparse(side)}}}") for side in (node.left, node.right)]
        if not all(re.fullmatch(r"\{.*\}", side) for side in sides):
            yield "".join(sides)


def _inner(node: ast.expr) -> str:
    assert isinstance(node, ast.FormattedValue)
    return ast.unparse(node.value)


def _in_cpp(source: str) -> Iterator[tuple[str, str]]:
    for exception, arguments in _CPP_THROW.findall(re.sub(r"//.*", "", source)):
        # Literals side by side are one. Code before, between and after them fills in values.
        parts = re.split(r'"((?:[^"\\]|\\.)*)"', arguments)
        codes = ["{…}" if code.strip("+ \n") else "" for code in parts[::2]]
        literals = [*parts[1::2], ""]
        template = "".join(code + literal for code, literal in zip(codes, literals, strict=True))
        if re.search(r"[a-z]{2}", template):
            yield exception.rpartition("::")[2], re.sub(r"(\{…\})+", "{…}", template)
