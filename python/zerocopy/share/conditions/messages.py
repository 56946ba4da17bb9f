"""The warnings and log records of a call: recorded while it runs, and repeated when its result is reused."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from zerocopy.process.replacements import Replacements

_MAX_NOTED = 200
_FIELDS = ("name", "levelno", "pathname", "lineno", "funcName")


class Messages:
    """Warnings and log records of a call within a block.

    Attributes
    ----------
    warnings : list
        For each warning: module and name of its class, text, file and line.
    records : list
        For each log record from WARNING up: the values of `_FIELDS`, and the text.
    """

    def __init__(self) -> None:
        self.warnings: list[list[Any]] = []
        self.records: list[list[Any]] = []

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Record warnings and log records within a block. They reach their handlers too."""
        replaced = Replacements()
        try:
            replaced.replace(warnings, "showwarning", self._noting_warnings)
            replaced.replace(logging.Logger, "callHandlers", self._noting_records)
            yield
        finally:
            replaced.restore()

    def _noting_warnings(self, show: Any) -> Any:
        def showwarning(
            message: Any, category: Any, filename: str, lineno: int, *rest: Any, **more: Any
        ) -> None:
            if len(self.warnings) < _MAX_NOTED:
                names = category.__module__, category.__qualname__
                self.warnings.append([*names, str(message), filename, lineno])
            show(message, category, filename, lineno, *rest, **more)

        return showwarning

    def _noting_records(self, handle: Any) -> Any:
        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            is_ours = record.name.partition(".")[0] == "zerocopy"
            if record.levelno >= logging.WARNING and not is_ours and len(self.records) < _MAX_NOTED:
                with contextlib.suppress(Exception):  # the arguments do not fit: the handlers report that
                    values = [getattr(record, field) for field in _FIELDS]
                    self.records.append([*values, record.getMessage()])
            handle(logger, record)

        return call_handlers


def say_again(said: Sequence[Sequence[Any]], records: Sequence[Sequence[Any]]) -> None:
    """Issue the warnings of an earlier call, and hand its log records to their loggers."""
    for module, name, text, filename, lineno in said:
        category = getattr(sys.modules.get(module), name, UserWarning)
        owner = next(
            (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == filename), None
        )
        registry = None if owner is None else vars(owner).setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, category, filename, lineno, getattr(owner, "__name__", None), registry)
    for *values, text in records:
        fields = dict(zip(_FIELDS, values, strict=True))
        logger = logging.getLogger(fields["name"])
        if logger.isEnabledFor(fields["levelno"]):
            where = fields["pathname"], fields["lineno"]
            record = logger.makeRecord(
                logger.name, fields["levelno"], *where, text, (), None, fields["funcName"]
            )
            logger.handle(record)
