"""Other readers read the files of the tests' byte-level writer."""

from __future__ import annotations

import io
import zipfile

import assembler
from attacks.attack import good
from attacks.zip_whole import described
from conftest import stock_load
from equality import assert_same

FILES = (assembler.checkpoint, lambda: assembler.checkpoint(wide={}), described)


def test_other_readers_read_what_the_assembler_writes() -> None:
    for make in FILES:
        content = make()
        assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None
        assert_same(stock_load(io.BytesIO(content)), good())
