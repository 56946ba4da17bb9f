"""Reads each file of the repository once, and finds its prose: comments, docstrings, Markdown but tables and code."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Sentences that hide their subject, by a crude pattern.
RIDDLE = re.compile(
    r"^(What|Who|Whoever|Whatever|Which|Whose)\b(?!.*\?)"
    r"|\b(is|are|was) no\b(?! longer)"
    r"|\b[Tt]hat (is|are) there\b"
)


@functools.cache
def text(path: Path) -> str:
    """Return the content of a file."""
    return path.read_text()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a Python file, the module first."""
    return list(ast.walk(ast.parse(text(path))))


def dotted(node: ast.AST) -> str:
    """Return ``"a.b.c"`` for such an expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def files() -> list[Path]:
    """Return the files of the repository, as git or the source archive has them."""
    with contextlib.suppress(FileNotFoundError):  # git is not installed
        git = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True)
        if git.returncode == 0:
            return [ROOT / name for name in git.stdout.splitlines() if (ROOT / name).exists()]
    folders = ("python", "csrc", "tests", "benchmarks", "scripts", "docs", "examples")
    found = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*") if path.is_file()]
    return [*found, *ROOT.glob("*.md")]


def lines(path: Path) -> list[str]:
    """Return a file's lines of prose, without marks of comments."""
    if path.suffix == ".md":
        outside_code = re.sub(r"```.*?```", "", text(path), flags=re.S)
        return [line for line in outside_code.splitlines() if line.strip() and not line.startswith("|")]
    if path.suffix in (".py", ".pyi"):
        return list(_of_python(path))
    if path.suffix in (".cpp", ".h"):
        return re.findall(r"//+!?<?\s*(.*)$", text(path), flags=re.M)
    if path.parent.name in ("scripts", ".ci"):
        return [line.strip("# ") for line in text(path).splitlines() if line.lstrip().startswith("# ")]
    return []


def _of_python(path: Path) -> Iterator[str]:
    yield from re.findall(r"(?:^|  )#[#: ]*(.*)$", text(path), flags=re.M)
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(str.strip, (ast.get_docstring(node) or "").splitlines())


def sentences(prose: list[str]) -> list[str]:
    """Return the sentences of lines, as far as each lies in one line."""
    return [part.strip(" -*#>") for line in prose for part in re.split(r"(?<=[.:;!?])\s+", line)]


def identifiers(path: Path) -> set[str]:
    """Return the names that a source file uses, its own name among them."""
    if path.suffix == ".py":
        fields = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}
        fields |= dict.fromkeys((ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef), "name")
        found = {getattr(node, fields[type(node)]) for node in nodes(path) if type(node) in fields}
    else:
        code = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', "", text(path))
        found = set(re.findall(r"\b[A-Za-z_]\w*", code))
    return found | {path.stem}


def words_of(identifier: str) -> set[str]:
    """Return the words that a name is made of, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}
