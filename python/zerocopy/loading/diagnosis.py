"""Names what a file is instead of a checkpoint. People save all sorts of things as ``.pt``."""

from __future__ import annotations

import pickle
import re
import tarfile
from typing import NamedTuple

from zerocopy.errors import Error, FormatError, UnsupportedError

#: How many bytes of the file's ends are looked at.
HEAD = 1 << 20
TAIL = 22


class TarError(UnsupportedError):
    """The file is a tar archive, the format of before PyTorch 0.1.10."""


class TorchScriptError(UnsupportedError):
    """The file is a TorchScript archive, and weights_only was asked for."""


class UnknownFormatError(FormatError):
    """The file has a format that torch never wrote."""


class UnknownPickleError(pickle.UnpicklingError):
    """The file is a bare pickle of objects that are on no allow-list."""


UNKNOWN = (UnknownFormatError, UnknownPickleError)
DIAGNOSES = (TarError, TorchScriptError, *UNKNOWN)


def public_error(error: Exception) -> Exception:
    """Return one of :data:`DIAGNOSES` as the exception that users know."""
    public = type(error).__base__ or Exception
    known: Exception = public(*error.args)
    known.__dict__.update(error.__dict__)
    return known


class FileSample(NamedTuple):
    """The first and last bytes of a file, and its size."""

    head: bytes
    tail: bytes
    size: int


_ZIP = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_LFS = b"version https://git-lfs.github.com/spec/"
# It begins with a global.
_TEXT_PICKLE = re.compile(rb"\(*[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n.*\.", re.DOTALL)
_COMPRESSED = {
    b"\x1f\x8b\x08": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
}
TORCHS_TAR = (
    "this file is a tar archive of PyTorch before 0.1.10. Only load(weights_only=False) can load it, which lets the "
    "file run any code"
)
OTHER_TAR = "this is a tar archive that torch did not write: extract it (tar -xf), and load the file in it"
PLAIN_PICKLE = "this is a plain pickle, not a file that torch.save wrote"
_NUMPY = b"\x93NUMPY"
_HTML = re.compile(rb"\s*(<!doctype\s+html|<html|<head|<\?xml[^>]*>\s*<!doctype\s+html)", re.IGNORECASE)


def diagnose(sample: FileSample, error: Error) -> Exception:
    """Return the exception to raise for a file that could not be opened because of `error`."""
    head, tail, size = sample
    if size == 0:
        return UnknownFormatError("the file is empty")
    if head.startswith(_ZIP) or tail.startswith(_ZIP_END):  # a directory at the end: two formats in one file
        return error
    if str(error).startswith("legacy file"):
        return error
    if head.startswith(_LFS):
        return UnknownFormatError(
            f"this is a git-lfs pointer{_lfs_details(head)}, not the weights. Run 'git lfs pull'."
        )
    if _HTML.match(head):
        return UnknownFormatError(
            f"this is an HTML page{_html_title(head)}. The download needed a login or a confirm step."
        )
    for magic, (kind, command) in _COMPRESSED.items():
        if head.startswith(magic):
            return UnknownFormatError(f"this is a file compressed by {kind}: decompress it first ({command})")
    if head.startswith(_NUMPY):
        return UnknownFormatError("this is a NumPy array (.npy), not a checkpoint: numpy.load reads it")
    if is_tar(head):
        return TarError(TORCHS_TAR if is_torchs_tar(head) else OTHER_TAR)
    if str(error).startswith("safetensors"):
        return error
    if (head[:1] == b"\x80" and head[1:2] <= b"\x05") or _TEXT_PICKLE.match(head):
        return _bare_pickle(head)
    return UnknownFormatError(f"not a checkpoint that zerocopy knows: it begins with {head[:16]!r}")


def is_tar(head: bytes) -> bool:
    """Return whether a file with these first bytes is a tar archive."""
    # By its checksum: the oldest tars have no magic, and torch.load opens them as well.
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def is_torchs_tar(content: bytes) -> bool:
    """Return whether a tar archive may be one that torch wrote before 0.1.10: it has a member of this name."""
    return b"storages" in content


def _bare_pickle(head: bytes) -> Exception:
    from zerocopy._native import _C  # here, because both need torch and the command line does without
    from zerocopy.loading.objects import allowlist

    try:
        allowlist.resolve(_C.foreign_globals(head))
    except pickle.UnpicklingError as refusal:
        found = str(refusal).partition(f" {allowlist.TRUST}")[0]
        unknown = UnknownPickleError(
            f"{PLAIN_PICKLE}: only pickle.load reads it, and can run any code of it. {found}"
        )
        unknown.__dict__.update(refusal.__dict__)
        return unknown
    return UnknownFormatError(PLAIN_PICKLE)


def _lfs_details(head: bytes) -> str:
    oid = re.search(rb"^oid (\S{1,80})$", head, re.MULTILINE)
    size = re.search(rb"^size (\d{1,18})$", head, re.MULTILINE)
    if not oid or not size:
        return ""
    return f" ({oid[1].decode('ascii', 'replace')}, {int(size[1]):,} bytes)"


def _html_title(head: bytes) -> str:
    title = re.search(rb"<title[^>]*>\s*([^<]{1,100}?)\s*<", head, re.IGNORECASE)
    return f" (title: {title[1].decode('utf-8', 'replace')!r})" if title else ""
