"""Puts the name of a file into errors of the operating system about it."""

from __future__ import annotations

import errno
import os

#: The message for EFAULT: a write took bytes from a mapping, behind the end of the mapped file.
CUT = "a file that is mapped was cut"


class naming:
    """Add the name of a file to an ``OSError`` that a block raises. Without a name the error stays as it is.

    This is not a generator: from Python 3.13 on, a generator's frames and the error would keep each other alive, and
    the variables of all callers too.
    """

    def __init__(self, name: str | os.PathLike[str] | None) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, OSError) or error.errno is None:
            return
        name = None if self._name is None else os.fspath(self._name)
        if error.errno == errno.EFAULT:
            raise OSError(errno.ESTALE, CUT, name) from None
        if name is not None:
            raise OSError(error.errno, error.strerror, name) from None
