"""Makes the tar archives that torch.save wrote before 0.1.10, part by part."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterable
from typing import Any

from assembler import Code, code, name, pickle

NUMEL = 16
DATA = struct.pack(f"<{NUMEL}f", *range(NUMEL))


def storage() -> bytes:
    """Return an entry of the member ``storages``, with key 1."""
    return pickle((1, "cpu", name("torch", "FloatStorage"))) + struct.pack("<q", NUMEL) + DATA


def storages(*entries: bytes, count: Any = None, views: Any = ()) -> bytes:
    """Return the member ``storages``."""
    count = len(entries) if count is None else count
    return pickle(count) + b"".join(entries) + pickle(list(views) if isinstance(views, tuple) else views)


def tensor() -> bytes:
    """Return an entry of the member ``tensors``, with key 2."""
    return pickle((2, 1, name("torch", "FloatTensor"))) + struct.pack("<i4x3q", 1, NUMEL, 1, 0)


def tensors(*entries: bytes, count: Any = None) -> bytes:
    """Return the member ``tensors``."""
    return pickle(len(entries) if count is None else count) + b"".join(entries)


def reference(key: Any) -> Code:
    """Return opcodes that name a tensor or a storage by its key."""
    return Code(code(key) + b"Q")


def member(title: str, content: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member; `fields` are attributes of its ``TarInfo``."""
    info = tarfile.TarInfo(title)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as target:
        for info, content in members:
            target.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return out.getvalue()


def checkpoint(obj: Any = None, **parts: Any) -> bytes:
    """Return an archive of ``{"weight": tensor}`` or of `obj`.

    `parts` replace members of their name: by other bytes, by a :func:`member`, or by nothing if they are None.
    """
    contents = {
        "storages": storages(storage()),
        "tensors": tensors(tensor()),
        "pickle": pickle({"weight": reference(2)} if obj is None else obj),
    } | parts
    return archive(
        member(title, part) if isinstance(part, bytes) else part
        for title, part in contents.items()
        if part is not None
    )


def as_v7(content: bytes) -> bytes:
    """Return an archive whose headers are those of the oldest tars: without a magic."""
    out, at = bytearray(content), 0
    while out[at]:
        size = int(out[at + 124 : at + 135], 8)
        out[at + 257 : at + 512] = bytes(255)
        out[at + 148 : at + 156] = b" " * 8
        out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
        at += 512 + -(-size // 512) * 512
    return bytes(out)
