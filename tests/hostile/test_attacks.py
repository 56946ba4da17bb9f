"""The catalog of attacks: each file gets its answer, within its limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attacks import CATALOG
from attacks.attack import CANARY, Attack, Expected, Family
from attacks.names import NAMES
from attacks.payloads import PAYLOADS
from attacks.runner import Runner
from attacks.server import DIFFERS, EQUAL, GREED, LOADS, Outcome
from conftest import saved_bytes
from refusals import MAX_MESSAGE_LENGTH
from sanitizer import SANITIZED

WORDS = {Expected.EQUAL: EQUAL, Expected.LOADS: LOADS}
#: No message quotes more of a file.
MAX_ECHO_LENGTH = 200


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def test_names_of_attacks_are_unique() -> None:
    titles = [family.title for family in CATALOG]
    assert len(set(titles)) == len(titles)
    for family in CATALOG:
        names = [attack.name for attack in family.attacks]
        assert len(set(names)) == len(names), family.title
        assert not [name for name in names if "|" in name or not name.isprintable() or name != name.strip()]


@pytest.mark.parametrize("family", CATALOG, ids=lambda family: family.title)
def test_zerocopy_gives_the_expected_answers(family: Family, runner: Runner) -> None:
    """A refused attack is refused, and nothing else happens, in bounded memory and time."""
    faults = [
        f"{attack.name}: {fault}: {str(outcome)[:500]}"
        for attack, outcome in runner.outcomes(family).items()
        for fault in faults_of(outcome, attack, family, runner)
    ]
    assert not faults, "\n".join([f"{len(faults)} faults", *faults])


def faults_of(outcome: Outcome, attack: Attack, family: Family, runner: Runner) -> Iterator[str]:
    here = attack.here()
    expected = WORDS.get(here.expected, here.expected.value)
    if here.expected is not Expected.TORCH:
        if outcome.word != expected:
            yield f"expected {expected}"
        for said in here.says:
            if said not in outcome.message and said not in outcome.globals:
                yield f"does not say {said}"
        if outcome.word not in (EQUAL, LOADS):
            yield from faults_of_message(outcome.message, attack, family, runner)
    if outcome.noted or outcome.left:
        yield "does something"
    if outcome.memory > GREED * attack.memory:
        yield f"takes more than {attack.memory} bytes"


def faults_of_message(message: str, attack: Attack, family: Family, runner: Runner) -> Iterator[str]:
    path = runner.path(attack, family)
    if str(path) not in message and attack.weights_only:  # else pickle itself says what is wrong
        yield "does not name the file"
    if len(message) > MAX_MESSAGE_LENGTH + len(str(path)):
        yield "long message"
    if not message.replace("\n", "").isprintable():
        yield "control characters"
    if len(echo(message, path.read_bytes())) > MAX_ECHO_LENGTH:
        yield "quotes much of the file"


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


@pytest.mark.parametrize("family", CATALOG, ids=lambda family: family.title)
def test_stubs_open_no_door(family: Family, runner: Runner) -> None:
    """Nothing runs under ``unknown="stub"``, and what is no global's fault is refused as without it."""
    wrong = []
    for attack, outcome in runner.outcomes(family, "stub").items():
        loads = outcome.word in (EQUAL, LOADS, DIFFERS)  # from what a trusting load gives
        is_clean = (loads or outcome.is_refusal) and not outcome.noted and not outcome.left
        is_malformed = attack.here().expected is Expected.FORMAT and attack.weights_only
        if not is_clean or outcome.memory > GREED * attack.memory or (loads and is_malformed):
            wrong.append(f"{attack.name}: {outcome}")
    assert not wrong, "\n".join(wrong)


def test_errors_of_torch_itself_are_passed_on(runner: Runner) -> None:
    """Some releases wrap what they say in an UnpicklingError."""
    for family in CATALOG:
        attacks = [attack for attack in family.attacks if attack.expected is Expected.TORCH]
        ours = runner.outcomes(family, "zerocopy", attacks)
        theirs = runner.outcomes(family, "torch", attacks)
        for attack in attacks:
            assert ours[attack].word not in (EQUAL, LOADS), attack.name
            assert ours[attack].message in theirs[attack].message
            assert theirs[attack].word in (ours[attack].word, "UnpicklingError")


def test_payloads_are_live(runner: Runner) -> None:
    """A loader that trusts the file runs it: what is refused is not refused for a slip in the payload."""
    outcomes = runner.outcomes(NAMES, "trusting", PAYLOADS)
    assert not [attack.name for attack, outcome in outcomes.items() if outcome.left != [CANARY]]


@pytest.mark.slow("some 250 files, of which torch refuses many")
@pytest.mark.skipif(bool(SANITIZED), reason="stock torch is not built with it")
def test_torch_loads_an_equal_value_or_refuses(runner: Runner) -> None:
    """The running release of torch loads the same value as zerocopy, or refuses the file."""
    wrong = []
    for family in CATALOG:
        attacks = [attack for attack in family.attacks if attack.here().expected is Expected.EQUAL]
        for attack, outcome in runner.outcomes(family, "torch", attacks).items():
            if outcome.word != EQUAL and not outcome.is_refusal:
                wrong.append(f"{family.title}: {attack.name}: {outcome}")
    if b"byteorder" not in saved_bytes(0):  # such a release takes each file for one of this machine
        wrong = [line for line in wrong if "byteorder big" not in line]
    assert not wrong, "\n".join(wrong)
