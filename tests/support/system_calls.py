"""A child process in which the kernel refuses some system calls, as other file systems, users and kernels do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import traceback
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

# Numbers on x86-64 and on aarch64 (asm/unistd.h).
_NUMBERS = {
    "clone": (56, 220),
    "copy_file_range": (326, 285),
    "fchmod": (91, 52),
    "fchown": (93, 55),
    "fsetxattr": (190, 7),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "linkat": (265, 37),
    "lseek": (8, 62),
    "openat": (257, 56),
    "pidfd_open": (434, 434),
    "rename": (82, 38),
    "sendfile": (40, 71),
    "unlink": (87, 35),
    "writev": (20, 66),
}
_IS_X86 = platform.machine() == "x86_64"
_LOAD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_TMPFILE, _CLONE_VM = 0o20000000, 0x100
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


class Refusal(NamedTuple):
    """A system call, the error that it gets, and the value that bits of an argument have for that.

    Without an error the call kills the process.
    """

    name: str
    error: int | None
    argument: int = 0
    mask: int = 0
    value: int = 0


#: A file system, or a kernel, that makes no files without a name.
NO_UNNAMED_FILES = Refusal("openat", errno.EOPNOTSUPP, 2, _TMPFILE, _TMPFILE)
#: A system that has no room for a copy of the process. Threads share memory, so they can start.
NO_COPIES = Refusal("clone", errno.EAGAIN, 0, _CLONE_VM)


def in_child(work: Callable[[], object], *refusals: Refusal) -> None:
    """Call a function in a child of this process. Fail if it raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            torch.set_num_threads(1)  # OpenMP has lost its threads at the fork
            refuse(*refusals)
            work()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if "no filters of system calls" in said:
        pytest.skip("no filters of system calls here")
    assert status == (0 if all(refusal.error for refusal in refusals) else -signal.SIGSYS), said


def refuse(*refusals: Refusal) -> None:
    """Have the kernel refuse system calls of this thread, and of threads and processes that it begins."""
    steps = []
    for name, error, argument, mask, value in refusals:
        number = _NUMBERS[name][0 if _IS_X86 else 1]
        check = (
            [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask), (_JUMP_IF_EQUAL, 0, 1, value)]
            if mask
            else []
        )
        steps += [
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, len(check) + 1, number),
            *check,
            (_RETURN, 0, 0, _KILL if error is None else _ERRNO | error),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    packed = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, packed, 0, 0):
        raise OSError(ctypes.get_errno(), "no filters of system calls")
