"""Runs the cells of a notebook, and writes them with their output as a page.

A notebook is a Python file whose cells begin with ``# %%``, or ``# %% [markdown]``. Jupyter (with jupytext) and
editors open it as a notebook.

    python docs/notebooks/run.py                 # all notebooks: writes docs/notebooks/*.md
    python docs/notebooks/run.py lazy hdf5       # some
    python docs/notebooks/run.py --cells lazy    # runs the cells only; small if SMALL=1 is in the environment
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent


def cells(notebook: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and text of each cell: "markdown" without its comment signs, or "python"."""
    for cell in notebook.read_text().split("# %%")[1:]:
        head, _, text = cell.partition("\n")
        if head.strip() == "[markdown]":
            yield (
                "markdown",
                "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines()),
            )
        else:
            yield "python", text.strip()


def run(code: str, names: dict[str, object]) -> tuple[str, str]:
    """Run a cell. Return what it printed, and the HTML or text of its last expression."""
    tree, value = ast.parse(code), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if value is None:
        return printed.getvalue(), ""
    html = getattr(value, "_repr_html_", lambda: None)()
    return (printed.getvalue(), html) if html else (f"{printed.getvalue()}{value!r}\n", "")


def machine() -> str:
    """Return a sentence that names the machine and the releases."""
    import torch

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").open()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"Run with PyTorch {torch.__version__} and Python {platform.python_version()}, on "
        f"{len(os.sched_getaffinity(0))} processors ({model}). Times are those of one run beside other work; "
        "[benchmarks.md](../benchmarks.md) has medians of a quiet machine."
    )


def page(notebook: Path) -> str:
    """Run a notebook, and return its page."""
    names: dict[str, object] = {"__name__": "notebook"}
    parts = []
    for kind, text in cells(notebook):
        if kind == "markdown":
            parts.append(text.strip())
            continue
        printed, html = run(text, names)
        parts.append(f"```python\n{text}\n```")
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
        if html:
            parts.append(html)
    title, _, rest = "\n\n".join(parts).partition("\n")
    source = f"`docs/notebooks/run.py` makes this page from [{notebook.name}]({notebook.name})."
    return f"{title}\n{rest}\n\n## The run\n\n{wrapped(source + ' ' + machine())}\n"


def wrapped(text: str) -> str:
    """Return a paragraph in lines of at most 100 columns."""
    import textwrap

    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def main(*names: str) -> None:
    """Run each notebook in a process and a folder of its own."""
    if names[:1] == ("--cells",):
        for name in names[1:]:
            page(HERE / f"{name}.py")
        return
    if names[:1] == ("--page",):
        made = page(HERE / f"{names[1]}.py")
        (HERE / f"{names[1]}.md").write_text(made)
        return
    for name in names or sorted(path.stem for path in HERE.glob("*.py") if path.stem != "run"):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "ZEROCOPY_CACHE": f"{folder}/cache"}
            command = [sys.executable, __file__, "--page", name]
            subprocess.run(command, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
