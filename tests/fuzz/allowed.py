"""Classes that a file may make because the caller allows them: they take whatever it gives them."""

from __future__ import annotations

from typing import Any


class Mine:
    def __new__(cls, *args: Any) -> Mine:
        return object.__new__(cls)

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class MyDict(dict[Any, Any]):
    def __init__(self, *args: Any) -> None:
        super().__init__()
