"""The pause of the garbage collector."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from zerocopy.process.collector import collector_paused


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


@collector_paused
def is_paused(function: Callable[[], object] = lambda: None) -> bool:
    function()
    return not gc.isenabled()


def test_pause_ends_with_the_outermost_function_also_after_an_error() -> None:
    def fail() -> None:
        assert is_paused()
        assert not gc.isenabled()
        raise KeyError

    with pytest.raises(KeyError):
        is_paused(fail)
    assert gc.isenabled()
    assert is_paused()
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    assert is_paused()
    assert not gc.isenabled()


def test_threads_in_the_function_at_the_same_time_end_the_pause_once() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        inside.set()
        leave.wait(30)

    thread = threading.Thread(target=is_paused, args=(other,))

    def begin() -> None:
        thread.start()
        assert inside.wait(30)

    assert is_paused(begin)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_child_of_a_fork_within_the_function_collects() -> None:
    leave = threading.Event()
    inside = threading.Event()

    def other() -> None:
        inside.set()
        leave.wait(30)

    thread = threading.Thread(target=is_paused, args=(other,))
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_interrupted_function_leaves_the_collector_on() -> None:
    class Interrupt(Exception):
        """Raised by the handler."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            with contextlib.suppress(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                while True:
                    assert is_paused()
            assert gc.isenabled()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
