"""Signal handlers that wait until steps that belong together are done."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from zerocopy.process import interrupts


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_handler_is_called_at_the_end_of_the_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        interrupt()
        steps.append(1)
    assert steps == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_part_that_allows_it_is_interrupted_and_the_rest_is_not() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with contextlib.suppress(KeyboardInterrupt), interrupts.allowed():
            interrupt()
            steps.append(1)
        with interrupts.deferred():
            interrupt()
            steps.append(2)
        steps.append(3)
        with interrupts.allowed():
            steps.append(4)
    assert steps == [2, 3]


@contextlib.contextmanager
def inner(steps: list[str]) -> Iterator[None]:
    with interrupts.deferred():
        with interrupts.allowed():
            yield
        interrupt()
        steps.append("inner")


def test_parts_may_end_in_another_order_than_they_began() -> None:
    """The block that began last decides, also after others have ended."""
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred(), contextlib.ExitStack() as stack:
        stack.enter_context(inner(steps))
        stack.enter_context(inner(steps))
        with interrupts.deferred():
            stack.close()
            steps.append("outer")
    assert steps == ["inner", "inner", "outer"]
