"""Finds the prose of the repository: comments, docstrings, Markdown. Tables and code in Markdown do not count."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Sentences that hide their subject, by a crude pattern.
RIDDLE = re.compile(
    r"^(What|Who|Whoever|Whatever|Which|Whose)\b(?!.*\?)"
    r"|\b(is|are|was) no\b(?! longer)"
    r"|\b[Tt]hat (is|are) there\b"
)


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
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        return [line for line in text.splitlines() if line.strip() and not line.startswith("|")]
    if path.suffix in (".py", ".pyi"):
        return list(_of_python(path.read_text()))
    if path.suffix in (".cpp", ".h"):
        return re.findall(r"//+!?<?\s*(.*)$", path.read_text(), flags=re.M)
    if path.parent.name in ("scripts", ".ci"):
        return [line.strip("# ") for line in path.read_text().splitlines() if line.lstrip().startswith("# ")]
    return []


def _of_python(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.strip("#: ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(str.strip, (ast.get_docstring(node) or "").splitlines())


def sentences(prose: list[str]) -> list[str]:
    """Return the sentences of lines, as far as each lies in one line."""
    return [part.strip(" -*#>") for line in prose for part in re.split(r"(?<=[.:;!?])\s+", line)]


def identifiers(path: Path) -> set[str]:
    """Return the names that a source file uses, its own name among them."""
    text = path.read_text()
    if path.suffix == ".py":
        nodes = list(ast.walk(ast.parse(text)))
        found = {node.id for node in nodes if isinstance(node, ast.Name)}
        found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        found |= {
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
    else:
        code = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', "", text)
        found = set(re.findall(r"\b[A-Za-z_]\w*", code))
    return found | {path.stem}


def words_of(identifier: str) -> set[str]:
    """Return the words that a name is made of, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}
