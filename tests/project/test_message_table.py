"""The table of messages is current, and its sentences are plain."""

from __future__ import annotations

import os
import re

import message_table
import pytest

UPDATE = os.environ.get("ZEROCOPY_UPDATE_DOCS") == "1"
MESSAGES = message_table.collected()
RIDDLE = re.compile(
    r"^(what|who|whoever|whatever|which|whose)\b|\b(is|are|was) no\b(?! longer)|\bthat (is|are) there\b", re.I
)
#: Words of the code, or of an argument that only the code has, which a user has not heard of.
INTERNAL = re.compile(r"\b(_core|_C|pybind11|blueprint|catalog|skeleton|twin|zygote|incompatible function)\b")


def test_table_of_messages_is_current() -> None:
    page = message_table.page(MESSAGES)
    if UPDATE:
        message_table.PAGE.write_text(page)
    assert page == message_table.PAGE.read_text(), (
        "ZEROCOPY_UPDATE_DOCS=1 corrects docs/reference/messages.md"
    )


@pytest.mark.parametrize("rule", [RIDDLE, INTERNAL], ids=["riddle", "internal word"])
def test_message_is_plain(rule: re.Pattern[str]) -> None:
    assert not [(message.file, message.text) for message in MESSAGES if rule.search(message.text)]


def test_messages_of_both_languages_are_found() -> None:
    assert {"python", "csrc"} == {message.file.partition("/")[0] for message in MESSAGES}
    assert any(message.kind.startswith("log") for message in MESSAGES)
