"""Sends the log of zerocopy to standard error where ``ZEROCOPY_LOG_LEVEL`` asks for it.

Handlers get paths and names of files in the records as ``display.shown`` shows them.
"""

from __future__ import annotations

import logging
import os

from zerocopy.display import shown

VARIABLE = "ZEROCOPY_LOG_LEVEL"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_logger = logging.getLogger("zerocopy")


def _made_visible(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = shown(message, None), ()
    return True


_logger.addFilter(_made_visible)
_handlers: list[logging.Handler] = []  # one, as soon as a level is asked for


def configure() -> None:
    """Set the level of the logger "zerocopy" to ``ZEROCOPY_LOG_LEVEL``, and print its records. May be repeated.

    Raises
    ------
    ValueError
        The variable holds something else than a level.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return
    if text.upper() not in _LEVELS:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(_LEVELS)}, not {text!r}")
    _logger.setLevel(text.upper())
    if not _handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("zerocopy: %(message)s"))
        # The handlers of the program get each record too, and would print it a second time.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        _handlers.append(handler)
        _logger.addHandler(handler)


def is_requested() -> bool:
    """Return whether ``ZEROCOPY_LOG_LEVEL`` asks for lines of level INFO."""
    return bool(_handlers) and _logger.isEnabledFor(logging.INFO)
