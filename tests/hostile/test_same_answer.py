"""The answer to a crafted archive does not depend on how its bytes are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attacks.attack import MEBIBYTE, Attack
from attacks.geometry import GEOMETRY
from attacks.tensors import ODD_TENSORS, STORAGES
from attacks.zip_fields import DIRECTORY, ENTRIES
from attacks.zip_records import COMPRESSION, RECORDS
from attacks.zip_whole import CUTS_AND_JOINS, ODD_ARCHIVES
from conftest import outcome
from equality import assert_same

import zerocopy

FAMILIES = (
    ODD_ARCHIVES,
    CUTS_AND_JOINS,
    DIRECTORY,
    ENTRIES,
    COMPRESSION,
    RECORDS,
    ODD_TENSORS,
    STORAGES,
    GEOMETRY,
)
JUNK = b"PK\5\6junk"
BIG = 64 * MEBIBYTE

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage")


def by_path(data: bytes, path: Path, **options: Any) -> Any:
    path.write_bytes(data)
    return zerocopy.load(path, **options)


def by_pread(data: bytes, path: Path) -> Any:
    return by_path(data, path, backend="pread")


def from_memory(data: bytes, _: Path) -> Any:
    return zerocopy.load(data)


def from_the_rest_of_a_file(data: bytes, path: Path) -> Any:
    """The archive begins where the file object stands; what is before is not ours."""
    path.write_bytes(JUNK + data)
    with path.open("rb") as file:
        file.seek(len(JUNK))
        return zerocopy.load(file)


WAYS = (by_pread, from_memory, from_the_rest_of_a_file)


def differences(attack: Attack, way: Callable[[bytes, Path], Any], folder: Path) -> Iterator[str]:
    data = attack.make()
    expected = outcome(lambda: by_path(data, folder / "mapped.pt"))
    found = outcome(lambda: way(data, folder / "other.pt"))
    if expected[:-1] != found[:-1]:
        yield f"{attack.name}: {expected} and {found}"
    elif expected[0] == "value":
        try:
            assert_same(found[1], expected[1])
        except AssertionError as error:
            yield f"{attack.name}: {error}"


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow("each file in each way"))]
)
def test_answer_is_the_same_however_a_file_is_read(every: bool, tmp_path: Path) -> None:
    attacks = [attack for family in FAMILIES for attack in family.attacks if attack.memory <= BIG]
    found = [
        line
        for number, attack in enumerate(attacks)
        for way in (WAYS if every else [WAYS[number % len(WAYS)]])
        for line in differences(attack, way, tmp_path)
    ]
    assert attacks and not found, "\n".join(found)[:5000]
