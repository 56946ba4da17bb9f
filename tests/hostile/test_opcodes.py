"""Pickles of many kinds at once: all load or are refused, and nothing else happens."""

import collections
import contextlib

import assembler as a
from assembler import checkpoint, name
from refusals import CLEAN

import zerocopy


def test_every_two_opcodes():
    """No pair of opcodes, on a stack of a few values, does anything but load or refuse."""
    head = b"\x80\x02" + b"]}N(" + a.tensor() + name("collections", "OrderedDict") + b")"
    outcomes = collections.Counter()
    for first in range(256):
        for second in b"(.0Rab\x81\x85\x93Qsut":
            tail = bytes([first, second]) + b"\1\n\1\n" + b"."
            try:
                zerocopy.load(checkpoint(head + tail))
                outcomes["loaded"] += 1
            except CLEAN as error:
                outcomes[type(error).__name__] += 1
    assert outcomes["FormatError"] > 1000


def test_storage_class_that_this_release_lacks():
    """A name of the machine's own table need not be an attribute of that module."""
    for module in ("torch", "torch.storage", "torch.cuda"):
        for kind in ("QInt8Storage", "FloatStorage", "UntypedStorage"):
            with contextlib.suppress(CLEAN):
                zerocopy.load(checkpoint(a.pickle([name(module, kind)])))
