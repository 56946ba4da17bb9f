"""TorchScript archives: torch runs the program, and finds the storages of its tensors where the file is mapped.

``torch.jit.load`` copies each storage. For programs within a package (``torch.package``), torch looks up the key of a
storage in a table before it looks for a record. So zerocopy writes the program, without its data, into a small archive
that is laid out as such a package, and puts the storages into the table.

Torch's reader trusts its input. So zerocopy's own readers first check the zip directory, both pickles to their end,
each tensor against its storage and each storage against its record.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import pickletools
import zipfile
from typing import Any

import torch

from zerocopy._native import _C
from zerocopy._torch import context, script
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading import inputs

log = logging.getLogger("zerocopy")

_PUTS = ("BINPUT", "LONG_BINPUT")
_GETS = ("BINGET", "LONG_BINGET")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
# torch writes this before the BINPERSID of a storage: ('storage', class, key, location, number of elements)
_ID = ("MARK", _TEXTS + _GETS, ("GLOBAL", *_GETS), _TEXTS + _GETS, _TEXTS + _GETS, None, "TUPLE")
_KEY = 3  # the position of the key in _ID

# The number of the program in the package, and the folders of its records.
_NUMBER = "0"
_PICKLES = f".data/ts_code/{_NUMBER}/"
_CODE = ".data/ts_code/code/"

# A part of the safe machine's message about a dtype that zerocopy does not know.
_UNKNOWN_DTYPE = "storages of class"

_MAX_CODE = 1 << 30  # bytes, of all sources together


class StockOnlyError(Exception):
    """Raised, with the reason, for an archive that only torch's own loader reads. It never reaches the user."""


def load(archive: _C.Archive, map_location: Any, extra_files: dict[str, Any] | None) -> Any:
    """Return the module of an archive, and fill `extra_files`. Raise ``StockOnlyError`` if only torch can read it."""
    device = script.script_device(map_location)
    why = _why_only_stock(archive)
    if why:
        raise StockOnlyError(why)
    module = script.import_script(*_packaged(archive), device, _NUMBER)
    extra = {name: _extra_file(archive, name) for name in extra_files or ()}
    archive.require_unchanged()
    if extra_files is not None:
        extra_files.update(extra)
    return module


def load_by_stock(
    f: Any, begin: int | None, map_location: Any, extra_files: dict[str, Any] | None, reason: StockOnlyError
) -> Any:
    """Load by ``torch.jit.load``, and log the reason."""
    log.info("%s goes to torch.jit.load: %s", inputs.name_of(f), reason)
    if isinstance(f, (str, os.PathLike)):
        return script.jit_load(os.fsdecode(f), map_location, extra_files)
    with inputs.binary_file(f, begin) as file:
        return script.jit_load(file, map_location, extra_files)


def _why_only_stock(archive: _C.Archive) -> str:
    if not archive.is_torchscript:
        if b"model.json" in archive.record_names():
            return "a TorchScript archive of before PyTorch 1.0.1, with a model.json"
        raise FormatError(
            "not a TorchScript archive: record 'constants.pkl' is missing. zerocopy.load reads tensors, and "
            "zerocopy.export.load programs of torch.export"
        )
    if archive.big_endian:
        return "a big-endian TorchScript archive"
    return context.why_script_is_special()


def _extra_file(archive: _C.Archive, name: str) -> bytes:
    record = b"extra/" + name.encode()
    return archive.record(record) if record in archive.record_names() else b""  # as torch does


def _packaged(archive: _C.Archive) -> tuple[io.BytesIO, dict[str, torch.Tensor]]:
    """Return the program as a package, and a dict from the storages' keys to tensors over them."""
    data, storages = _pickle(archive, b"data.pkl", b"data/")
    constants, others = _pickle(archive, b"constants.pkl", b"constants/")
    if not storages.keys().isdisjoint(others):  # the keys of each pickle count from "0"
        prefix = "constants/"
        constants = _rename_storages(constants, prefix)
        others = {prefix + key: storage for key, storage in others.items()}
    table = storages | others
    records = {f"{_PICKLES}data.pkl": data, f"{_PICKLES}constants.pkl": constants, **_code(archive)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as package:
        for name, content in records.items():
            package.writestr(f"archive/{name}", content)
    file.seek(0)
    return file, {key: _C.view(storage, torch.uint8, 0, [], []) for key, storage in table.items()}


def _pickle(archive: _C.Archive, name: bytes, folder: bytes) -> tuple[bytes, dict[str, torch.UntypedStorage]]:
    try:
        pickled, storages = archive.pickle_with_storages(name, folder)
    except pickle.UnpicklingError as error:  # an opcode that pickles of data do not need
        raise FormatError(str(error)) from None
    except UnsupportedError as error:
        if _UNKNOWN_DTYPE not in str(error):
            raise
        raise StockOnlyError(f"{name.decode()} has tensors of a type that zerocopy does not know") from None
    made = {key: storage for key, storage in storages if storage is not None}
    if len(made) < len(storages):
        raise StockOnlyError("it has tensors of the meta device")
    return pickled, made


def _code(archive: _C.Archive) -> dict[str, bytes]:
    code, size = {}, 0
    for name in archive.record_names():
        if name.startswith(b"code/"):
            content = archive.record(name)
            size += len(content)
            code[_CODE + _text(name.removeprefix(b"code/"))] = content
            if size > _MAX_CODE:
                raise FormatError(f"more than {_MAX_CODE} bytes of code")
        elif name in (b"version", b".data/version"):
            code[name.decode()] = archive.record(name)
    return code


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FormatError(f"the name of a record of code is not UTF-8: {name[:200]!r}") from None


def _rename_storages(pickled: bytes, prefix: str) -> bytes:
    """Return a pickle with `prefix` before the key of each storage, and nothing else changed."""
    try:
        opcodes = list(pickletools.genops(pickled))
    except ValueError as error:  # class names that are not ASCII: torch never writes them
        raise FormatError(f"constants.pkl: {error}") from None
    ends = [*(at or 0 for _, _, at in opcodes[1:]), len(pickled)]
    memo: dict[Any, int] = {}  # from numbers of the memo to the opcode that made the value
    effective: list[int] = []
    keys: set[int] = set()
    for i, (opcode, argument, _) in enumerate(opcodes):
        if opcode.name in _PUTS:
            memo[argument] = effective[-1]
            continue
        if opcode.name == "BINPERSID":
            keys.add(_key_of(opcodes, effective[-len(_ID) :]))
        effective.append(i)

    def text(i: int) -> str:
        opcode, argument, _ = opcodes[i]
        return text(memo[argument]) if opcode.name in _GETS else str(argument)

    renamed = bytearray()
    for i, (opcode, argument, at) in enumerate(opcodes):
        if i in keys:
            renamed += _unicode(prefix + text(i))
        elif opcode.name in _GETS and memo[argument] in keys:  # the same text, but it is not a key here
            renamed += _unicode(text(i))
        else:
            renamed += pickled[at : ends[i]]
    return bytes(renamed)


def _key_of(opcodes: list[Any], window: list[int]) -> int:
    names = [opcodes[i][0].name for i in window]
    as_written = len(names) == len(_ID) and all(
        wanted is None or name in (wanted if isinstance(wanted, tuple) else (wanted,))
        for name, wanted in zip(names, _ID, strict=True)
    )
    if not as_written:
        raise StockOnlyError(f"expected names of storages in constants.pkl, found {names}")
    return window[_KEY]


def _unicode(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded
