"""Other readers read the files of the tests' byte-level writer."""

from __future__ import annotations

import io
import zipfile

import assembler
import pytest
from attacks.attack import good
from attacks.zip_whole import described
from conftest import stock_load
from equality import assert_same

FILES = {
    "plain": assembler.checkpoint,
    "zip64": lambda: assembler.checkpoint(wide={}),
    "descriptors": described,
}


@pytest.mark.parametrize("form", FILES)
def test_archives(form: str) -> None:
    content = FILES[form]()
    assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    assert_same(stock_load(io.BytesIO(content)), good())
