"""docs/reference/attacks.md, made from the catalog and from what stock torch of each release answered."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from attacks import CATALOG
from attacks.attack import MEBIBYTE, Attack, Expected
from attacks.server import (
    DIFFERS,
    EQUAL,
    HANGS,
    KILLED,
    LOADS,
    NO_MEMORY,
    TORCH_MEMORY,
    TORCH_SECONDS,
)

PATH = Path(__file__).parent.parent.parent / "docs" / "reference" / "attacks.md"
RELEASES = ("1.13.1", "2.13.0")
UNKNOWN = "?"

#: By family and attack.
Answers = dict[str, dict[str, str]]

_FAILURES = {
    "loads what zerocopy refuses": lambda attack, answer: must_be_refused(attack) and is_loaded(answer),
    "loads another value than the file's": lambda attack, answer: answer == DIFFERS,
    "crashes": lambda attack, answer: answer.startswith(KILLED),
    "hangs": lambda attack, answer: answer == HANGS,
    "runs out of memory": lambda attack, answer: answer == NO_MEMORY,
    "refuses what is good": lambda attack, answer: is_good(attack) and is_refusal(answer),
}

_TEXT = """# Attacks

Does a hostile or damaged file get through? This page lists {attacks} files, each with one fault or oddity, and the
outcome of loading each with `weights_only=True` (with `False` if the name ends in "trusted").

zerocopy refuses {refused} of them: {policy} for the names or calls in them (`pickle.UnpicklingError`), {format} for
damage (`zerocopy.FormatError`), {unsupported} for features that it does not read (`zerocopy.UnsupportedError`). It
loads {equal}, which compare equal, and {loads} more. It leaves {torchs} to torch's judgement.

{counts}

The catalog is `tests/attacks/`: code makes each file byte by byte, beside the answer that zerocopy must give. A test
loads each file in a forked process, in an empty folder. Unless the catalog says otherwise, the process has 2 s of
processor time, and 64 MiB of memory beyond the file. The test fails if the answer is another. It fails if anything was
imported, executed, opened, written or called on the way (by Python's audit events). It also fails if a message lacks
the file's name, is longer than 10 000 characters, or quotes more than 200 characters of the file.

The column of a release shows the answer of its `torch.load(weights_only=True)`: "equal", "loads", or "differs" if the
value is not the file's; the class of the exception; "killed by" a signal; "hangs" beyond {seconds} s of processor time;
"out of memory" beyond {memory} MiB. **Bold** marks a value where zerocopy refuses, a value other than the file's, or a
crash. A bold value is not always a fault of torch: many of these files are harmless to torch. zerocopy refuses them
because two readers could understand them in two ways.

`tests/hostile/test_attacks.py` makes this page, and fails if the page is wrong. After a change run the test with
`ZEROCOPY_UPDATE_DOCS=1`, once on each release: it records that release's answers in `tests/attacks/answers/`.
`PYTHONPATH=tests:tests/support python -m attacks` lists the files that take most time and memory.
"""


def release() -> str | None:
    """Return the running release if the page has a column for it."""
    minor = torch.__version__.split(".")[:2]
    return next((known for known in RELEASES if known.split(".")[:2] == minor), None)


def answers(of: str) -> Answers:
    """Return what a release answered."""
    path = _answers_path(of)
    return json.loads(path.read_text()) if path.exists() else {}


def record(measured: Answers) -> None:
    """Write the running release's answers: those measured, the others as they were."""
    of = release()
    before, path = answers(of), _answers_path(of)
    known = {
        family.title: {
            attack.name: measured.get(family.title, {}).get(attack.name)
            or before.get(family.title, {}).get(attack.name, UNKNOWN)
            for attack in family.attacks
        }
        for family in CATALOG
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")


def _answers_path(of: str) -> Path:
    return Path(__file__).parent / "answers" / f"{of}.json"


def is_loaded(answer: str) -> bool:
    return answer in (EQUAL, LOADS, DIFFERS)


def is_refusal(answer: str) -> bool:
    return not (is_loaded(answer) or is_fatal(answer))


def is_fatal(answer: str) -> bool:
    return answer in (HANGS, NO_MEMORY) or answer.startswith(KILLED)


def must_be_refused(attack: Attack) -> bool:
    return attack.expected in (Expected.FORMAT, Expected.REFUSED)


def is_good(attack: Attack) -> bool:
    return attack.expected in (Expected.EQUAL, Expected.LOADS)


def text() -> str:
    """Return the page."""
    attacks = [attack for family in CATALOG for attack in family.attacks]
    number = {expected: sum(attack.expected is expected for attack in attacks) for expected in Expected}
    refused = (Expected.REFUSED, Expected.FORMAT, Expected.UNSUPPORTED)
    head = _TEXT.format(
        attacks=len(attacks),
        refused=sum(number[expected] for expected in refused),
        policy=number[Expected.REFUSED],
        format=number[Expected.FORMAT],
        unsupported=number[Expected.UNSUPPORTED],
        equal=number[Expected.EQUAL],
        loads=number[Expected.LOADS],
        torchs=number[Expected.TORCH],
        counts=_counts(),
        seconds=TORCH_SECONDS,
        memory=TORCH_MEMORY // MEBIBYTE,
    )
    return head + "".join(_section(title, rows) for title, rows in _rows().items())


def _rows() -> dict[str, list[tuple[Attack, list[str]]]]:
    said = [answers(of) for of in RELEASES]
    return {
        family.title: [
            (attack, [one.get(family.title, {}).get(attack.name, UNKNOWN) for one in said])
            for attack in family.attacks
        ]
        for family in CATALOG
    }


def _counts() -> str:
    rows = [row for rows in _rows().values() for row in rows]
    lines = [_line("", "zerocopy", *(f"torch {of}" for of in RELEASES)), "|---|---|---|---|"]
    for what, is_so in _FAILURES.items():
        found = [sum(is_so(attack, said[i]) for attack, said in rows) for i in range(len(RELEASES))]
        lines.append(_line(what, "0", *map(str, found)))
    return "\n".join(lines)


def _section(title: str, rows: list[tuple[Attack, list[str]]]) -> str:
    lines = [_line("file", "zerocopy", *(f"torch {of}" for of in RELEASES)), "|---|---|---|---|"]
    for attack, said in rows:
        lines.append(_line(attack.name, _ours(attack), *(_theirs(attack, answer) for answer in said)))
    return "\n".join([f"\n## {title}\n", *lines, ""])


def _ours(attack: Attack) -> str:
    if not attack.needs or not attack.weights_only:
        return attack.expected.value
    needed = attack.needs.rpartition(".")[2]
    return f"{attack.expected.value}; {Expected.REFUSED.value} where torch has no `{needed}`"


def _theirs(attack: Attack, answer: str) -> str:
    bad = is_fatal(answer) or answer == DIFFERS or (must_be_refused(attack) and is_loaded(answer))
    return f"**{answer}**" if bad else answer


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
