"""Writes checkpoints byte by byte, so that any field of them can be wrong.

Pickles are made of opcodes (:func:`code`, :func:`call`, :func:`tensor`, ...), archives of an :class:`Entry`
a record.
Nothing here asks torch, pickle or zipfile how it is done.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# ---------------------------------------------------------------------------------------- pickle

MARK, STOP, REDUCE, BUILD, NEWOBJ, BINPERSID = b"(", b".", b"R", b"b", b"\x81", b"Q"
EMPTY_TUPLE, EMPTY_LIST, EMPTY_DICT, EMPTY_SET = b")", b"]", b"}", b"\x8f"
APPEND, APPENDS, SETITEM, SETITEMS, ADDITEMS, TUPLE = b"a", b"e", b"s", b"u", b"\x90", b"t"
STACK_GLOBAL, MEMOIZE, POP, DUP = b"\x93", b"\x94", b"0", b"2"


class Code(bytes):
    """Opcodes that leave one value on the stack."""


def code(value: Any) -> Code:
    """Return the opcodes that make `value`; a :class:`Code` is taken as it is."""
    match value:
        case Code():
            return value
        case None:
            return Code(b"N")
        case bool():
            return Code(b"\x88" if value else b"\x89")
        case int() if -(2**31) <= value < 2**31:
            return Code(b"J" + struct.pack("<i", value))
        case int():
            digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return Code(b"\x8a" + bytes([len(digits)]) + digits if len(digits) < 256 else long4(digits))
        case float():
            return Code(b"G" + struct.pack(">d", value))
        case str():
            return text(value.encode("utf-8", "surrogatepass"))
        case bytes():
            return Code(b"B" + struct.pack("<I", len(value)) + value)
        case tuple():
            return Code(MARK + b"".join(map(code, value)) + TUPLE)
        case list():
            return Code(EMPTY_LIST + MARK + b"".join(map(code, value)) + APPENDS)
        case dict():
            pairs = b"".join(code(key) + code(item) for key, item in value.items())
            return Code(EMPTY_DICT + MARK + pairs + SETITEMS)
    raise TypeError(type(value).__name__)


def text(utf8: bytes) -> Code:
    """BINUNICODE, of any bytes."""
    return Code(b"X" + struct.pack("<I", len(utf8)) + utf8)


def long4(digits: bytes) -> Code:
    """LONG4, of any bytes."""
    return Code(b"\x8b" + struct.pack("<i", len(digits)) + digits)


def name(module: str | bytes, attribute: str | bytes) -> Code:
    """GLOBAL."""
    lines = [part.encode() if isinstance(part, str) else part for part in (module, attribute)]
    return Code(b"c" + lines[0] + b"\n" + lines[1] + b"\n")


def stack_name(module: str, attribute: str) -> Code:
    """STACK_GLOBAL."""
    return Code(code(module) + code(attribute) + STACK_GLOBAL)


def call(function: Code, *arguments: Any) -> Code:
    """REDUCE."""
    return Code(function + code(arguments) + REDUCE)


def new(cls: Code, *arguments: Any) -> Code:
    """NEWOBJ."""
    return Code(cls + code(arguments) + NEWOBJ)


def build(target: Any, state: Any) -> Code:
    """BUILD."""
    return Code(code(target) + code(state) + BUILD)


def put(value: Any, index: int) -> Code:
    """`value`, remembered."""
    return Code(code(value) + b"r" + struct.pack("<I", index))


def get(index: int) -> Code:
    """Return code for the value that :func:`put` stored."""
    return Code(b"j" + struct.pack("<I", index))


def pickle(*values: Any, proto: int = 2, stop: bytes = STOP) -> bytes:
    """Return a whole pickle of `values`, of which the last is the result."""
    return b"\x80" + bytes([proto]) + b"".join(map(code, values)) + stop


def ordered_dict(*pairs: tuple[Any, Any]) -> Code:
    """Return an ``OrderedDict`` filled by SETITEMS."""
    empty = call(name("collections", "OrderedDict"))
    return Code(empty + MARK + b"".join(code(key) + code(value) for key, value in pairs) + SETITEMS)


# ------------------------------------------------------------------------------- tensors in a pickle

NUMEL = 16  # of the storage that good() writes
DATA = struct.pack(f"<{NUMEL}f", *range(NUMEL))


def persistent(*id: Any) -> Code:
    """BINPERSID of a tuple."""
    return Code(code(id) + BINPERSID)


def storage(key: Any = "0", kind: Any = "FloatStorage", location: Any = "cpu", numel: Any = NUMEL) -> Code:
    """Return a storage as torch.save names it."""
    kind = name("torch", kind) if isinstance(kind, str) else kind
    return persistent("storage", kind, key, location, numel)


def tensor(
    over: Any = None,
    offset: Any = 0,
    size: Any = (NUMEL,),
    stride: Any = (1,),
    requires_grad: Any = False,
    hooks: Any = None,
    *more: Any,
    function: str = "_rebuild_tensor_v2",
) -> Code:
    """Return a call of torch's rebuild function."""
    hooks = ordered_dict() if hooks is None else hooks
    arguments = (storage() if over is None else over, offset, size, stride, requires_grad, hooks, *more)
    return call(name("torch._utils", function), *arguments)


# ------------------------------------------------------------------------------------------- zip


@dataclass
class Entry:
    """A record. `local` and `central` override the fields of its headers, under the names in `_fields`."""

    name: str | bytes
    data: bytes
    method: int = 0
    stored: bytes | None = None  # the bytes in the file, if they are not those that `method` gives
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    align: int = 64  # 1 leaves the data where it falls
    descriptor: bytes = b""  # after the data
    after: bytes = b""  # bytes that no record owns

    def payload(self) -> bytes:
        """Return the bytes in the file."""
        if self.stored is not None:
            return self.stored
        return deflate(self.data) if self.method == 8 else self.data


def deflate(data: bytes) -> bytes:
    """Raw DEFLATE."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush()


def zip64(*values: int) -> bytes:
    """Return a zip64 extra field."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def _fields(entry: Entry) -> dict[str, Any]:
    payload = entry.payload()
    return {
        "version": 20, "flags": 0, "method": entry.method, "crc": zlib.crc32(entry.data),
        "stored_size": len(payload), "size": len(entry.data),
        "name": entry.name.encode() if isinstance(entry.name, str) else entry.name,
    }  # fmt: skip


def _local(entry: Entry, offset: int) -> bytes:
    fields = _fields(entry) | {"signature": b"PK\3\4"} | entry.local
    head = 30 + len(fields["name"])
    padding = -(offset + head + 4) % entry.align if entry.align > 1 else None
    aligned = b"" if padding is None else struct.pack("<2sH", b"FB", padding) + bytes(padding)
    fields = {"extra": aligned} | fields
    fields = {"name_size": len(fields["name"]), "extra_size": len(fields["extra"])} | fields
    return fields["signature"] + struct.pack(
        "<5H3I2H", fields["version"], fields["flags"], fields["method"], 0, 0, fields["crc"],
        fields["stored_size"], fields["size"], fields["name_size"], fields["extra_size"],
    ) + fields["name"] + fields["extra"]  # fmt: skip


def _central(entry: Entry, offset: int) -> bytes:
    fields = _fields(entry) | {
        "signature": b"PK\1\2", "made_by": 20, "extra": b"", "comment": b"", "disk": 0, "attributes": 0,
        "header": offset,
    } | entry.central  # fmt: skip
    sizes = {"name_size": "name", "extra_size": "extra", "comment_size": "comment"}
    fields = {size: len(fields[of]) for size, of in sizes.items()} | fields
    return fields["signature"] + struct.pack(
        "<6H3I5H2I", fields["made_by"], fields["version"], fields["flags"], fields["method"], 0, 0,
        fields["crc"], fields["stored_size"], fields["size"], fields["name_size"], fields["extra_size"],
        fields["comment_size"],
        fields["disk"], 0, fields["attributes"], fields["header"],
    ) + fields["name"] + fields["extra"] + fields["comment"]  # fmt: skip


def _zip64_end(fields: dict[str, int], directory_end: int) -> bytes:
    record = struct.pack(
        "<4sQ2H2I4Q", b"PK\6\6", fields.get("record_size", 44), 45, 45, fields.get("disk64", 0),
        fields.get("directory_disk64", 0), fields.get("here64", fields["entries"]),
        fields.get("entries64", fields["entries"]), fields.get("size64", fields["size"]),
        fields.get("offset64", fields["offset"]),
    )  # fmt: skip
    at = fields.get("record_at", directory_end)
    return record + struct.pack(
        "<4sIQI", b"PK\6\7", fields.get("locator_disk", 0), at, fields.get("disks", 1)
    )


def archive(
    records: Iterable[Entry],
    *,
    before: bytes = b"",
    gap: bytes = b"",
    spare: bytes = b"",
    after: bytes = b"",
    comment: bytes = b"",
    wide: dict[str, int] | None = None,
    reverse: bool = False,
    **end: int,
) -> bytes:
    """Return an archive of `records`.

    Parameters
    ----------
    before, gap, spare, after : bytes
        Put in front of the archive, between records and directory, at the directory's end, behind all.
        `before` shifts no offset.
    wide : dict, optional
        Write a zip64 end record, with these fields overridden.
    reverse : bool
        The directory lists the records from last to first.
    **end : int
        The end record's `disk`, `directory_disk`, `here`, `entries`, `size`, `offset`, `comment_size`.
    """
    body, directory = bytearray(), []
    for entry in records:
        directory.append(_central(entry, len(body)))
        body += _local(entry, len(body)) + entry.payload() + entry.descriptor + entry.after
    body += gap
    central = b"".join(reversed(directory) if reverse else directory) + spare
    true = {"entries": len(directory), "size": len(central), "offset": len(body)}
    middle = b"" if wide is None else _zip64_end(true | wide, len(body) + len(central))
    said = {"disk": 0, "directory_disk": 0, "here": len(directory), "comment_size": len(comment)} | true | end
    last = struct.pack(
        "<4s4H2IH", b"PK\5\6", said["disk"], said["directory_disk"], said["here"], said["entries"],
        said["size"], said["offset"], said["comment_size"],
    )  # fmt: skip
    return before + bytes(body) + central + middle + last + comment + after


# ------------------------------------------------------------------------------------ checkpoints


def good() -> bytes:
    """Return the pickle of ``{"weight": tensor([0., 1., ..., 15.])}``."""
    return pickle({"weight": tensor()})


def entries(data_pkl: bytes | None = None, storages: dict[str, bytes] | None = None) -> list[Entry]:
    """Return the records of a checkpoint: data.pkl, data/<key>, version."""
    storages = {"0": DATA} if storages is None else storages
    return [
        Entry("archive/data.pkl", good() if data_pkl is None else data_pkl),
        *(Entry(f"archive/data/{key}", data) for key, data in storages.items()),
        Entry("archive/version", b"3\n"),
    ]


def checkpoint(
    data_pkl: bytes | None = None, storages: dict[str, bytes] | None = None, **options: Any
) -> bytes:
    """Return a checkpoint with that pickle and those storages."""
    return archive(entries(data_pkl, storages), **options)
