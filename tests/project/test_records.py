"""The named records that the extensions return have the fields that their stubs and Python's own records name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from conftest import Saver

import zerocopy
from zerocopy import _core, _native
from zerocopy.loading.explain import StorageExplanation

STUBS = Path(zerocopy.__file__).parent
RECORDS = [
    (_native._C.TensorEntry, "_C.pyi"),
    (_native._C.StoragePlacement, "_C.pyi"),
    (_core.ZipRecord, "_core.pyi"),
    (_core.StorageRecord, "_core.pyi"),
]


def fields_of(record: type) -> tuple[str, ...]:
    return record.__match_args__  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("record", "stub"), RECORDS, ids=lambda value: getattr(value, "__name__", None))
def test_stub_of_a_record_names_its_fields_in_order(record: type, stub: str) -> None:
    classes = (node for node in ast.parse((STUBS / stub).read_text()).body if isinstance(node, ast.ClassDef))
    described = next(node for node in classes if node.name == record.__name__)
    named = tuple(node.name for node in described.body if isinstance(node, ast.FunctionDef))
    assert named == fields_of(record)


def test_storage_explanation_has_the_fields_of_a_placement_and_names() -> None:
    assert StorageExplanation._fields == (*fields_of(_native._C.StoragePlacement), "names")


def test_record_of_a_zip_is_read_only(save: Saver) -> None:
    with save({"weight": torch.ones(3)}).open("rb") as file:
        record = _core.zip_records(file.fileno(), "")[0]
    with pytest.raises(AttributeError):
        record.size = 0  # type: ignore[misc]
