"""Writes the measured pages beside this file: objects.md, attacks.md, differences.md, messages.md.

    .venv/bin/python docs/reference/make.py [PAGE ...]

The catalogues of tests/ make the files. The answers are those of zerocopy and of the torch that runs this program.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in (".", "support", "hostile")]

RELEASE = f"torch {torch.__version__}"

OBJECTS = f"""# What loads, and how

Each object was saved by {RELEASE}, or made by hand where it could not have written it, and loaded by `torch.load` and
by `zerocopy.load`. "allowed" objects are those whose classes were given to `zerocopy.safe_globals`, and to torch's
where it has one.

| in the table | means |
|---|---|
| zero-copy | equal to what torch loads, and every storage lies in the mapping of the file |
| copied, partly copied | equal; the storages, or some of them, are in private memory |
| zero-copy where aligned | equal; what happens to lie at a multiple of its element size is mapped |
| as torch packs it | equal; torch copies the data into a form that depends on the processor |
| loads | equal, and there are no data that could be mapped |
| refused | both readers refuse what the file names or does |
| refused (torch loads it) | zerocopy refuses what the file names or does: a program, exceptions |
| (torch refuses) | zerocopy builds it itself, so `weights_only=True` loads it; torch's refuses |
| (torch cannot) | zerocopy loads it, this torch fails |
| (torch differs) | zerocopy loads what was saved, this torch something else |
| torch cannot load, torch cannot save | this torch fails |
"""
ATTACKS = """# Attacks

Does a hostile or damaged file get through? Each file has one fault or oddity. It is loaded in a forked process, in an
empty folder, with `weights_only=True` (with `False` if the name ends in "trusted").

{summary}
An answer is "equal", "loads", or "differs" if the value is not the file's; the class of the exception; "killed by" a
signal; "hangs" or "out of memory" beyond the limits: for torch {seconds} s of processor time and {memory} MiB, for
zerocopy those of the catalogue `tests/attacks/`, mostly 2 s and 64 MiB.

**Bold** marks a file that torch loads and zerocopy refuses, another value than the file's, and a crash. A bold answer
is not always a fault of torch: many of these files are harmless to it. zerocopy refuses them because two readers could
understand them in two ways.
"""
DIFFERENCES = """# Where zerocopy and others differ

Which files do zerocopy and other readers treat differently? `zerocopy.load` and `torch.load(weights_only=True)` load
the same object from a file, or both refuse the file, or this page gives the reason why they differ. Python's `zipfile`
reads the same archives, `pickle` the pickles that contain data only, and `zlib` the deflated records. For `zlib` no
difference is known. `tests/hostile/test_differential_*.py` compare the readers on random files, and fail for a
difference without a reason.

Each row has an example, which was given to each reader. "differs" means another object than zerocopy's. A row in which
all agree is about another release of torch, or of Python.
"""
MESSAGES = """# Messages

How do the errors, warnings and log lines of zerocopy read, side by side? A part in braces is filled in when the message
is made. Messages that are put together elsewhere, or taken from torch, are not listed.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def section(title: str, *content: Any) -> str:
    """Return a heading with a table below it."""
    return f"\n## {title}\n\n{table(*content)}"


# ------------------------------------------------------------------------------- objects


def objects() -> Iterator[str]:
    """Yield the page of kinds of objects."""
    from kinds import CATALOG

    yield OBJECTS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        for group in CATALOG:
            rows = [[kind.name, *placements(kind, path)] for kind in group.kinds]
            yield section(group.title, ["object", "weights_only=True", "weights_only=False"], rows)
    if torch.distributed.is_available() and torch.distributed.is_initialized():  # by the kind of DTensor
        torch.distributed.destroy_process_group()


def placements(kind: Any, path: Path) -> list[str]:
    """Return the cells of an object, by weights_only."""
    from conftest import outcome
    from measured_kinds import measured

    if not kind.is_there():
        return ["not in this release"] * 2
    path.unlink(missing_ok=True)
    torch.manual_seed(0)
    made = kind.make()
    if outcome(lambda: kind.write(made, path))[0] == "error":
        return ["torch cannot save"] * 2
    return [measured(kind, path, weights_only) for weights_only in (True, False)]


# ------------------------------------------------------------------------------- attacks


def attacks() -> Iterator[str]:
    """Yield the page of attacks."""
    from attacks import CATALOG
    from attacks.attack import MEBIBYTE
    from attacks.runner import Runner
    from attacks.server import TORCH_MEMORY, TORCH_SECONDS

    runner = Runner()
    answers = {
        (family, attack): (outcome.word, torchs[attack].word)
        for family in CATALOG
        for torchs in [runner.outcomes(family, "torch")]
        for attack, outcome in runner.outcomes(family).items()
    }
    runner.close()
    limits = {"seconds": TORCH_SECONDS, "memory": TORCH_MEMORY // MEBIBYTE}
    yield ATTACKS.format(summary=summary(list(answers.values())), **limits)
    for family in CATALOG:
        pairs = [(attack.name, *answers[family, attack]) for attack in family.attacks]
        rows = (
            (name, ours, f"**{torchs}**" if is_bad(ours, torchs) else torchs) for name, ours, torchs in pairs
        )
        yield section(family.title, ["file", "zerocopy", RELEASE], rows)


def sort_of(answer: str) -> str:
    """Return what the answers of the summary are counted as."""
    if answer.startswith("killed by "):
        return "crashes"
    known = {"equal": "loads", "loads": "loads", "differs": "loads another value than the file's"}
    return known.get(answer) or (answer if answer in ("hangs", "out of memory") else "refuses")


def is_bad(ours: str, torchs: str) -> bool:
    """Return whether an answer of torch is in bold."""
    sort = sort_of(torchs)
    return sort_of(ours) == "refuses" if sort == "loads" else sort != "refuses"


def summary(answers: list[tuple[str, ...]]) -> str:
    """Return the table that counts the answers."""
    ours, torchs = (Counter(map(sort_of, column)) for column in zip(*answers, strict=True))
    pairs = Counter((sort_of(our), sort_of(torchs)) for our, torchs in answers)
    rows = [(sort, str(ours[sort]), str(torchs[sort])) for sort in sorted(ours | torchs)]
    rows.append(("loads what zerocopy refuses", "", str(pairs["refuses", "loads"])))
    rows.append(("refuses what zerocopy loads", "", str(pairs["loads", "refuses"])))
    return table([f"of {len(answers)} files", "zerocopy", RELEASE], rows)


# ------------------------------------------------------------------------------- differences, messages


def differences() -> Iterator[str]:
    """Yield the page of files that readers treat differently."""
    from test_differential_pickle import SECTIONS, Bench, answers

    def word(answer: list[str] | None) -> str:
        sort, *rest = answer or [""]
        return {"value": "loads", "error": rest[0] if rest else ""}.get(sort, sort)

    bench = Bench()
    yield DIFFERENCES
    with tempfile.TemporaryDirectory() as folder:
        for title, (peer, reasons) in SECTIONS.items():
            rows = []
            for reason in reasons:
                ours, others, torchs = answers(bench, peer, reason, Path(folder) / "checkpoint.pt")
                rows.append([reason.name, word(torchs), word(others), word(ours), reason.why])
            yield section(title, ["what", RELEASE, peer, "zerocopy", "why"], rows)
    bench.close()


def messages() -> Iterator[str]:
    """Yield the page of messages."""
    from messages import collected

    yield MESSAGES
    found = list(dict.fromkeys(collected()))
    for folder in dict.fromkeys(str(Path(message.file).parent) for message in found):
        rows = [
            (Path(file).name, kind, "`` {} ``".format(text.replace("|", "\\|").replace("\n", "\\n")))
            for file, kind, text in found
            if str(Path(file).parent) == folder
        ]
        yield section(folder, ["file", "kind", "message"], rows)


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    made.__name__: made for made in (objects, attacks, differences, messages)
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if unknown := set(sys.argv[1:]) - set(PAGES):
        sys.exit(f"make.py: expected pages of {', '.join(PAGES)}, found {', '.join(unknown)}")
    for name in sys.argv[1:] or PAGES:
        (HERE / f"{name}.md").write_text("".join(PAGES[name]()))
