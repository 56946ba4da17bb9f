"""Mutations of the tar of before PyTorch 0.1.10 that leave its pickles whole: they are trusted, the rest is not."""

from __future__ import annotations

import io
import pickletools
import random
import struct
import tarfile

import mutate_bytes
import mutate_pickle
from assembler import code

_FORMS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
          tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z")  # fmt: skip
_BLOCK = 512

Member = tuple[tarfile.TarInfo, bytes]


def read(archive: bytes) -> list[Member]:
    """Return the members. Raises one of tarfile's exceptions if the bytes are not an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        members = [member for member in opened.getmembers() if member.isreg()]
        return [(member, (opened.extractfile(member) or io.BytesIO()).read()) for member in members]


def write(members: list[Member], form: int) -> bytes:
    """Return an archive of members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as target:
        for info, content in members:
            target.addfile(info, io.BytesIO(content))
    return out.getvalue()


def mutate(archive: bytes, rng: random.Random) -> bytes:
    """Return an archive changed."""
    members, form = read(archive), rng.choice(_FORMS)
    if not members:
        return _mutate_header(archive, rng)
    i = rng.randrange(len(members))
    info, content = members[i]
    match rng.randrange(9):
        case 0:
            del members[i]
        case 1:
            members.insert(rng.randrange(len(members)), members[i])
        case 2:
            info.type = rng.choice(_TYPES)
        case 3:
            info.name = rng.choice(("storages", "tensors", "pickle", "./tensors", "../x", "x" * 300, "é"))
        case 4:
            info.pax_headers = {rng.choice(("size", "path", "GNU.sparse.size", "GNU.sparse.map")): "10"}
        case 5:
            return _mutate_header(write(members, form), rng)
        case _:
            content = mutate_member(content, rng)
            info.size = len(content)
            members[i] = info, content
    return write(members, form)


def mutate_member(content: bytes, rng: random.Random) -> bytes:
    """Return a member in which a number between or inside its pickles is another; no pickle is broken."""
    parts: list[tuple[bool, bytes]] = []  # whether it is a pickle
    while content:
        at = content.find(b"\x80\x02")
        raw, content = (content, b"") if at < 0 else (content[:at], content[at:])
        if raw:
            parts.append((False, raw))
        if content:
            try:
                _, rest = mutate_pickle.split(content)
            except ValueError:  # two bytes of data that look like one
                parts.append((False, content))
                break
            parts.append((True, content[: len(content) - len(rest)]))
            content = rest
    if parts:
        i = rng.randrange(len(parts))
        is_pickle, part = parts[i]
        parts[i] = is_pickle, _renumber(part, rng) if is_pickle else _mutate_raw(part, rng)
    return b"".join(part for _, part in parts)


def _renumber(pickle: bytes, rng: random.Random) -> bytes:
    steps, _ = mutate_pickle.split(pickle)
    numbers = [i for i, step in enumerate(steps) if pickletools.code2op[chr(step[0])].name == "BININT"]
    if numbers:
        i = rng.choice(numbers)
        steps[i] = code(mutate_bytes.number(rng, int.from_bytes(steps[i][1:], "little", signed=True)))
    return b"".join(steps)


def _mutate_raw(part: bytes, rng: random.Random) -> bytes:
    """Counts, dimensions, sizes, strides and offsets are words of 4 or 8 bytes."""
    if rng.random() < 0.3 or len(part) < 8:
        return mutate_bytes.mutate_bytes(part, rng)
    at = rng.randrange(len(part) // 8) * 8
    old = int.from_bytes(part[at : at + 8], "little", signed=True)
    return part[:at] + struct.pack("<Q", mutate_bytes.number(rng, old) % 2**64) + part[at + 8 :]


def _mutate_header(archive: bytes, rng: random.Random) -> bytes:
    """Change a byte or a field of a header, and make its checksum right."""
    changed = bytearray(archive)
    headers = [at for at in range(0, len(archive), _BLOCK) if archive[at + 257 : at + 262] == b"ustar"]
    if not headers:
        return mutate_bytes.mutate_bytes(archive, rng)
    at = rng.choice(headers)
    field = rng.choice((slice(0, 100), slice(124, 136), slice(156, 157), slice(157, 257), slice(257, 512)))
    header = changed[at : at + _BLOCK]
    octal = b"%011o\0" % rng.choice((0, 1, 511, 2**33 - 1))
    value = rng.choice((rng.randbytes(3), octal, b"\xff" * 12, b"\x80" + bytes(11)))
    width = field.stop - field.start
    header[field.start : field.start + min(width, len(value))] = value[:width]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    changed[at : at + _BLOCK] = header
    return bytes(changed)
