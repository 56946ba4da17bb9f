"""The English is plain: few sentences hide their subject; names are those of the field; messages say what was found."""

from __future__ import annotations

import ast
import re

import messages
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


def test_names_avoid_odd_words() -> None:
    odd, seen = [], set()
    for path in prose.files():
        if path.suffix in (".py", ".cpp", ".h"):
            for identifier in prose.identifiers(path):
                words = prose.words_of(identifier)
                seen |= words
                for word in words & set(ODD_WORDS):
                    name = path.relative_to(prose.ROOT)
                    odd.append(f"{name}: {identifier}: say {ODD_WORDS[word]}")
    assert "storage" in seen
    assert not odd


#: Verbs that do not say what a function does.
VAGUE_VERB = re.compile(r"(Have|Give|Be|Let|Note|Stand)\b")


def test_docstrings_open_with_a_verb_that_says_what_is_done() -> None:
    documented = [
        (path, ast.get_docstring(node))
        for path in sorted(prose.ROOT.glob("python/zerocopy/**/*.py"))
        for node in prose.nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node)
    ]
    assert len(documented) > 1000
    vague = [(path, text) for path, text in documented if VAGUE_VERB.match(text or "")]
    assert not [
        f"{path.relative_to(prose.ROOT)}: {text.partition(chr(10))[0]}" for path, text in vague if text
    ]


# ------------------------------------------------------------------------------- messages

RIDDLE = re.compile(
    r"^(what|who|whoever|whatever|which|whose)\b|\b(is|are|was) no\b(?! longer)|\bthat (is|are) there\b", re.I
)
#: Words of the code, or of an argument that only the code has, which a user has not heard of.
INTERNAL = re.compile(r"\b(_core|_C|pybind11|blueprint|catalog|skeleton|twin|zygote|incompatible function)\b")
#: Words of a message that say which value was found.
FOUND = re.compile(r"\{|\bgot\b|\bfound\b|\bat least one\b")


@pytest.fixture(scope="module")
def collected() -> list[messages.Message]:
    found = messages.collected()
    assert {"python", "csrc"} == {message.file.partition("/")[0] for message in found}
    assert any(message.kind.startswith("log") for message in found) and len(found) > 400
    return found


def test_messages_are_plain(collected: list[messages.Message]) -> None:
    rules = (RIDDLE, INTERNAL)
    assert not [message for message in collected if any(rule.search(message.text) for rule in rules)]


def test_message_with_an_expectation_says_what_was_found(collected: list[messages.Message]) -> None:
    expecting = [
        message
        for message in collected
        if re.search(r"^expected|: expected|\bmust be\b", message.text) and message.file.startswith("python")
    ]
    assert len(expecting) > 60
    assert not [message.text for message in expecting if not FOUND.search(message.text)]
