"""The English is plain: few sentences hide their subject, and names are those that the field uses."""

from __future__ import annotations

import functools

import prose
import pytest

MAX_RIDDLES_PER_1000_LINES = 3

#: Words that names once had, and the words that the field uses.
ODD_WORDS = {
    "road": "staged copy, staging",
    "haul": "transfer plan",
    "dress": "tensor extras",
    "dressed": "with extras",
    "undressed": "without extras",
    "standins": "replacements",
    "beneath": "unwrapped",
    "rehearsal": "storage scanner",
    "inert": "no-op",
    "hush": "silence",
    "complain": "print an error",
    "undiagnosed": "public error",
    "blueprint": "serialized object",
    "quirk": "custom reducer",
    "quirks": "custom reducers",
    "zygote": "fork server",
    "twin": "checked version, simulated device",
    "glimpse": "file sample",
}


def test_riddles_are_rare() -> None:
    """A crude count, not a proof: of sentences that open with "What" or "Who", or say "is no"."""
    prose_of = {path: prose.lines(path) for path in prose.files()}
    riddles = [
        f"{path.relative_to(prose.ROOT)}: {sentence}"
        for path, lines in prose_of.items()
        for sentence in prose.sentences(lines)
        if prose.RIDDLE.search(sentence)
    ]
    count = sum(map(len, prose_of.values()))
    assert count > 10_000
    assert len(riddles) <= MAX_RIDDLES_PER_1000_LINES * count / 1000, "\n".join(riddles)


@functools.cache
def uses() -> dict[str, list[str]]:
    """Return for each word the files and names that contain it."""
    found: dict[str, list[str]] = {}
    for path in prose.files():
        name = str(path.relative_to(prose.ROOT))
        if path.suffix in (".py", ".cpp", ".h"):
            for identifier in sorted(prose.identifiers(path)):
                for word in prose.words_of(identifier):
                    found.setdefault(word, []).append(f"{name}: {identifier}")
    return found


@pytest.mark.parametrize("word", ODD_WORDS)
def test_names_avoid_odd_words(word: str) -> None:
    assert "storage" in uses()
    assert not uses().get(word), f"say {ODD_WORDS[word]}"
