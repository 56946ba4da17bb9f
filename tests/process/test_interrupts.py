"""Signal handlers that wait until steps that belong together are done."""

from __future__ import annotations

import contextlib
import itertools
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Child

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


def test_block_within_a_block_ends_with_the_outer_one() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.deferred():
            interrupt()
            steps.append(1)
        steps.append(2)
    assert steps == [1, 2]


@pytest.mark.slow("zerocopy.save is imported, so torch is too")
def test_handler_that_saves_while_save_is_imported(tmp_path: Path, child: Child) -> None:
    code = """
        import os, signal, sys, torch, zerocopy
        begun = []
        def hook(event, arguments):
            if event == "import" and arguments[0] == "zerocopy.saving.pickler" and not begun:
                begun.append(True)
                os.kill(os.getpid(), signal.SIGTERM)
        sys.addaudithook(hook)
        signal.signal(signal.SIGTERM, lambda *_: zerocopy.save([2], sys.argv[1] + "/handler.pt"))
        zerocopy.save([1], sys.argv[1] + "/program.pt")
        assert begun
        print(torch.load(sys.argv[1] + "/handler.pt"), torch.load(sys.argv[1] + "/program.pt"))
    """
    done = child(code, tmp_path)
    assert (done.stdout, done.stderr) == ("[2] [1]\n", "")


class _OddError(Exception):
    """Stands for the exception of a signal handler."""


@pytest.mark.parametrize("call", range(5))
def test_handlers_are_put_back_although_one_raises_meanwhile(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    calls = itertools.count()

    def set_handler(number: int, handler: Any) -> Any:
        if next(calls) == call:  # a signal that is not deferred arrives here
            raise _OddError
        return signal.signal(number, handler)

    ours = signal.default_int_handler
    before = [signal.signal(number, ours) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with monkeypatch.context() as patch, contextlib.suppress(_OddError):
            patch.setattr(interrupts, "set_handler", set_handler)
            with interrupts.deferred():
                assert signal.getsignal(signal.SIGINT) is not ours
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            assert signal.getsignal(number) is ours
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
