"""What a file that is no zip archive is, in one sentence: people save all sorts of things as ``.pt``."""

from __future__ import annotations

import re
from typing import NamedTuple

from zerocopy import _C, allowlist
from zerocopy.errors import Error, FormatError, UnsupportedError

#: How many bytes of the file's ends are looked at.
HEAD = 4096
TAIL = 22


class Glimpse(NamedTuple):
    """The first and last bytes of a file, and its size."""

    head: bytes
    tail: bytes
    size: int


_ZIP = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LEGACY = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # LONG1 of the magic number, then STOP
_TAR = (257, b"ustar")
_LFS = b"version https://git-lfs.github.com/spec/"
_HTML = re.compile(rb"\s*(<!doctype\s+html|<html|<head|<\?xml[^>]*>\s*<!doctype\s+html)", re.IGNORECASE)


def diagnose(glimpse: Glimpse, error: Error) -> Exception:
    """Return the exception to raise for a file that could not be opened because of `error`."""
    head, tail, size = glimpse
    if size == 0:
        return FormatError("the file is empty")
    if head.startswith(_ZIP) or tail.startswith(_ZIP_END):  # the latter: two formats in one file
        return error
    if head.startswith(_LFS):
        return FormatError(
            f"this is a git-lfs pointer{_lfs_details(head)}, not the weights. Run 'git lfs pull'."
        )
    if _HTML.match(head):
        return FormatError(
            f"this is an HTML page{_html_title(head)}. The download needed a login or a confirm step."
        )
    if head[1:].lstrip(b"\x02\x03\x04\x05").startswith(_LEGACY) or _LEGACY in head[:32]:
        return UnsupportedError(
            "this file has the format of before PyTorch 1.6, which zerocopy does not read yet"
        )
    if head[_TAR[0] :].startswith(_TAR[1]):
        return UnsupportedError(
            "this file is a tar archive of before PyTorch 0.1.10, which zerocopy does not read yet"
        )
    if head.startswith(_HDF5):
        return UnsupportedError("this is an HDF5 file, which zerocopy does not read yet")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < max(size, 1):
        return UnsupportedError("this is a safetensors file, which zerocopy does not read yet")
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return _bare_pickle(head)
    return FormatError(f"not a checkpoint that zerocopy knows: it begins with {head[:16]!r}")


def _bare_pickle(head: bytes) -> Exception:
    try:
        allowlist.resolve(_C.foreign_globals(head))
    except Exception as refusal:
        return refusal
    return FormatError("this is a plain pickle, not a file that torch.save wrote")


def _lfs_details(head: bytes) -> str:
    oid = re.search(rb"^oid (\S{1,80})$", head, re.MULTILINE)
    size = re.search(rb"^size (\d{1,18})$", head, re.MULTILINE)
    if not oid or not size:
        return ""
    return f" ({oid[1].decode('ascii', 'replace')}, {int(size[1]):,} bytes)"


def _html_title(head: bytes) -> str:
    title = re.search(rb"<title[^>]*>\s*([^<]{1,100}?)\s*<", head, re.IGNORECASE)
    return f" (title: {title[1].decode('utf-8', 'replace')!r})" if title else ""
