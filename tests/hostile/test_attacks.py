"""The catalog of attacks: each file gets its answer, within its limits; docs/reference/attacks.md is current.

``ZEROCOPY_UPDATE_DOCS=1`` records stock torch's answers of the running release, and writes the page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from attacks import CATALOG, page
from attacks.attack import CANARY, Attack, Expected, Family
from attacks.containers import TAR
from attacks.payloads import PAYLOADS
from attacks.runner import Runner
from attacks.server import EQUAL, GREED, LOADS
from sanitizer import SANITIZED

UPDATE = os.environ.get("ZEROCOPY_UPDATE_DOCS") == "1"
WORDS = {Expected.EQUAL: EQUAL, Expected.LOADS: LOADS}

#: No message is longer, and none quotes more of a file than the second.
MAX_MESSAGE_LENGTH = 10_000
MAX_ECHO_LENGTH = 200

each_attack = pytest.mark.parametrize(
    ("family", "attack"),
    [
        pytest.param(family, attack, id=f"{family.title}: {attack.name}")
        for family in CATALOG
        for attack in family.attacks
    ],
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def measured() -> Iterator[page.Answers]:
    measured: page.Answers = {family.title: {} for family in CATALOG}
    yield measured
    if UPDATE:
        page.record(measured)
        page.PATH.write_text(page.text())


def test_names_are_unique() -> None:
    titles = [family.title for family in CATALOG]
    assert len(set(titles)) == len(titles)
    for family in CATALOG:
        names = [attack.name for attack in family.attacks]
        assert len(set(names)) == len(names), family.title
        assert not [name for name in names if "|" in name or not name.isprintable() or name != name.strip()]


@each_attack
def test_answer(family: Family, attack: Attack, runner: Runner) -> None:
    if not SANITIZED:
        runner.order(attack, "torch")  # meanwhile
    outcome, here = runner.load(attack), attack.here()
    if here.expected is Expected.TORCH:
        check_torchs_own(attack, runner)
    else:
        assert outcome.word == WORDS.get(here.expected, here.expected.value), outcome
        for said in here.says:
            assert said in outcome.message or said in outcome.globals
        if outcome.word not in (EQUAL, LOADS):
            check_message(outcome.message, attack, runner)
    assert not outcome.noted
    assert not outcome.left
    assert outcome.memory <= GREED * attack.memory


def check_torchs_own(attack: Attack, runner: Runner) -> None:
    """Assert that torch says the same; some releases wrap it in an UnpicklingError."""
    ours, theirs = runner.load(attack), runner.load(attack, "torch")
    assert ours.word not in (EQUAL, LOADS)
    assert ours.message in theirs.message
    assert theirs.word in (ours.word, "UnpicklingError")


def check_message(message: str, attack: Attack, runner: Runner) -> None:
    name = str(runner.file)
    assert name in message or not attack.weights_only  # pickle itself says what is wrong with a trusted file
    assert len(message) <= MAX_MESSAGE_LENGTH + len(name)
    assert message.replace("\n", "").isprintable(), ascii(message)
    assert len(echo(message, runner.data(attack))) <= MAX_ECHO_LENGTH


def echo(message: str, data: bytes) -> bytes:
    """Return the longest run of a message's characters that is in the file, if it is not short."""
    said, step, longest = message.encode(errors="surrogatepass"), MAX_ECHO_LENGTH // 2, b""
    for at in range(0, len(said) - step + 1, step):
        first, last = at, at + step
        if said[first:last] not in data:
            continue
        while first and said[first - 1 : last] in data:
            first -= 1
        while last < len(said) and said[first : last + 1] in data:
            last += 1
        longest = max(longest, said[first:last], key=len)
    return longest


#: Where stock torch comes near a limit, the machine decides on which side it falls.
BEYOND_LIMITS = {"hangs", "out of memory"}


@pytest.mark.skipif(bool(SANITIZED), reason="stock torch is not built with it")
@each_attack
def test_stock_torch(family: Family, attack: Attack, runner: Runner, measured: page.Answers) -> None:
    release = page.release()
    if release is None:
        pytest.skip("no answers are recorded of this release")
    outcome = runner.load(attack, "torch")
    measured[family.title][attack.name] = outcome.word
    if not UPDATE:
        recorded = page.answers(release).get(family.title, {}).get(attack.name)
        same = outcome.word == recorded or {outcome.word, recorded} & BEYOND_LIMITS
        # Python's tarfile reads a tar for torch: later patch levels refuse more of what is faulty.
        refused = family is TAR and page.is_refusal(outcome.word) and not page.is_good(attack)
        assert same or refused, f"ZEROCOPY_UPDATE_DOCS=1 records it: {outcome}"


@pytest.mark.parametrize("attack", PAYLOADS, ids=lambda attack: attack.name)
def test_payload_is_live(attack: Attack, runner: Runner) -> None:
    """A loader that trusts the file runs it: what is refused is not refused for a slip in the payload."""
    assert runner.load(attack, "trusting").left == [CANARY]


@pytest.mark.skipif(UPDATE, reason="is written when all is measured")
def test_page_is_current() -> None:
    assert page.PATH.read_text() == page.text(), "ZEROCOPY_UPDATE_DOCS=1 writes it"
