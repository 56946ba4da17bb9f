"""Errors in the words of the running torch.

A file that zerocopy refuses is not given to torch to see what it says: torch accepts files that zerocopy refuses, and
some of its releases can be attacked by them. Instead a stand-in is made, small and harmless and with the same fault,
and the original says its words about that.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pickle
import pickletools
import re
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy.loading import inputs

Function = Callable[..., Any]

# Modules whose functions lie between a program's call and the original.
_BETWEEN = ("zerocopy.", "torch._dynamo.")
_SEVERAL = ". Expected one archive: if several archives lie one behind the other, give each a file of its own"
_DAMAGED_DIRECTORY = (
    r"no central directory entry|zip central directory: truncated|run into the central directory"
    r"|zip extra field: truncated|is stored, but has two sizes|has no name"
)
_MAX_SIZE = 1 << 17  # bytes of a minimal file
_MAX_PICKLE = 1 << 20  # bytes, which pickletools reads in 0.13 s


def in_torch_words(original: Function, error: Exception, f: Any, weights_only: bool) -> BaseException:
    """Return the exception that `original` raises for a fault like `error`; one of its types where it raises none."""
    if isinstance(error.__cause__, EOFError):  # pickle's own
        return error.__cause__
    is_about_zip = ": zip" in str(error)
    minimal = _first_of_other_bytes(f) if is_about_zip else None
    # Where several archives lie in a file, the record is not where the last one says.
    if minimal is None and "zip64 end record" in str(error):
        return RuntimeError(f"{error}{_SEVERAL}")
    minimal = minimal or _minimal_file(error, f, weights_only)
    words = None if minimal is None else _words(original, minimal, weights_only, _is_in_memory(f))
    if words is not None:
        return words
    if weights_only and (isinstance(error, pickle.UnpicklingError) or "pickle: " in str(error)):
        return _of_pickle(original, error)
    plain = RuntimeError(str(error))
    # torch opens the archive before weights_only matters.
    return of_weights_only(original, plain) if weights_only and not is_about_zip else plain


def _of_pickle(original: Function, error: Exception) -> pickle.UnpicklingError:
    """Return `error`, and torch's advice where it refuses what a trusted file may do. A damaged pickle gets none."""
    if isinstance(error, pickle.UnpicklingError):
        refused = str(_words(original, _archive(_pickle(b"\xff")), weights_only=True))
        is_named = getattr(error, "first", None) is not None  # and has no minimal file: see _minimal_file
        what = "Unsupported global, whose name has a line break" if is_named else str(error)
        return pickle.UnpicklingError(refused.replace("Unsupported operand 255", what))
    return pickle.UnpicklingError(str(error))


def of_weights_only(original: Function, error: RuntimeError) -> Exception:
    """Return `error` as `original` raises it under weights_only: some releases wrap every RuntimeError."""
    trusting, safe = (_words(original, _without(None, "data/0"), safe) for safe in (False, True))
    if type(safe) is pickle.UnpicklingError and str(trusting) in str(safe):
        return pickle.UnpicklingError(str(safe).replace(str(trusting), str(error)))
    return error


def warn_of_default(original: Function) -> None:
    """Warn as `original` does of a call that leaves weights_only to it."""
    _words(original, _archive(_pickle(b"N")), weights_only=None, in_memory=True)


def _words(
    original: Function, minimal: bytes, weights_only: bool | None, in_memory: bool = False
) -> Exception | None:
    # Some words are not torch's but of the file object that it asks.
    with (
        warnings.catch_warnings(record=True) as recorded,
        io.BytesIO() if in_memory else tempfile.TemporaryFile() as file,
    ):
        warnings.simplefilter("always")
        file.write(minimal)
        file.seek(0)
        try:
            original(file, weights_only=weights_only, **_not_mapped(original))
            words = None
        except Exception as error:
            words = error.with_traceback(None)
            # The frames of these errors would keep the refused file open.
            words.__cause__ = words.__context__ = None
    _warn(original, recorded)
    return words


def _not_mapped(original: Function) -> dict[str, bool]:
    # A program can have torch map by default, which wants a path.
    return {"mmap": False} if "mmap" in inspect.signature(original).parameters else {}


def _warn(original: Function, recorded: list[warnings.WarningMessage]) -> None:
    """Warn again, of the line that called the patched function where `original` warned of its caller's line."""
    for warning in recorded:
        if warning.filename == _words.__code__.co_filename:  # it has stacklevel=2
            warnings.warn(warning.message, warning.category, stacklevel=_level_of_caller())
        else:
            module = sys.modules.get(original.__module__, sys.modules["torch"])
            registry = vars(module).setdefault("__warningregistry__", {})
            where = (warning.filename, warning.lineno, module.__name__, registry)
            warnings.warn_explicit(warning.message, warning.category, *where)


def _level_of_caller() -> int:
    """Return the ``stacklevel``, in the function that calls this, of the line that called the patched function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        level, frame = level + 1, frame.f_back
    return level


def _minimal_file(error: Exception, f: Any, weights_only: bool) -> bytes | None:
    refused = getattr(error, "first", None)
    # With a line break the name would be more than a name in the minimal file: opcodes of a stranger's choice.
    if refused is not None and not any(b"\n" in part for part in refused):
        return _archive(_beginning(f) + b"c%b\n%b\n." % refused)
    message = str(error)
    for pattern, make in _FAULTS:
        found = re.search(pattern, message)
        if found:
            return make(f, *found.groups())
    return None


def _first_of_other_bytes(f: Any) -> bytes | None:
    """Return the first byte of a file that torch takes for a pickle, since it does not begin as a zip archive."""
    head = _head(f, 4)
    return None if head == b"PK\3\4" else head[:1]


def _head(f: Any, size: int) -> bytes:
    """Return the first bytes of a file, and leave a file object where it stands."""
    with inputs.binary_file(f, inputs.position_of(f)) as file:
        begin = file.tell()
        head: bytes = file.read(size)
        file.seek(begin)
    return head


def _beginning(f: Any) -> bytes:
    """Return how the pickle of a file begins: of newer protocols torch refuses the first opcode already."""
    begin = inputs.open_archive(f, windows=True).pickle()[:3]
    return begin[:2] + (b"\x95" + bytes(8) if begin[2:] == b"\x95" else b"")


def _cut(f: Any) -> bytes:
    """Return the beginning of a zip archive. Sizes matter: torch fails in several ways to look for the end."""
    return b"PK\x03\x04".ljust(min(_size(f), _MAX_SIZE), b"\0")


def _cut_pickle(f: Any) -> bytes | None:
    """Return an archive whose pickle is the opcode that was cut: what torch says depends on where the bytes end."""
    content = inputs.open_archive(f, windows=True).pickle()
    if len(content) > _MAX_PICKLE:
        return _archive(b"\x80\x02")
    file, begin = io.BytesIO(content), 0
    with contextlib.suppress(ValueError):
        for _ in pickletools.genops(file):
            begin = file.tell()
    rest = content[begin:]
    # Only an opcode that reads to the end of the pickle is alone in the rest: then the minimal file calls nothing.
    is_alone = file.tell() == len(content)
    return _archive(b"\x80\x02" + rest) if is_alone and len(rest) <= _MAX_SIZE else None


def _with_damaged_directory(f: Any) -> bytes:
    return _archive(_pickle(b"N")).replace(b"PK\1\2", b"PK\0\0", 1)


def _first_name(f: Any) -> bytes | None:
    """Return an archive of one empty record, of the name by which torch takes the first of `f`."""
    header = 30
    name = _head(f, header + int.from_bytes(_head(f, header)[26:28], "little"))[header:]
    try:
        return _zip({name.decode(): b""})
    except UnicodeDecodeError:
        return None


def _without(f: Any, name: str) -> bytes:
    key = name.removeprefix("data/")
    records: dict[str, bytes | None] = {} if key != name else {name: None}
    return _archive(_pickle(_tensor(key, 1)), records)


def _of_other_size(f: Any, key: str, has: str, needs: str) -> bytes | None:
    if max(int(has), int(needs)) > _MAX_SIZE:
        return None
    return _archive(_pickle(_tensor(key, int(needs))), {f"data/{key}": bytes(int(has))})


def _outside_of_storage(f: Any, *_: str) -> bytes:
    return _archive(_pickle(_tensor("0", 1, size=9)), {"data/0": b"\0"})


def _cut_legacy(f: Any, needs: str, left: str) -> bytes | None:
    missing = int(needs) - int(left)
    if missing > _MAX_SIZE:
        return None
    header = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
    whole = header + _pickle(_tensor("0", missing, legacy=True)) + b"\x80\x02]X\x01\0\0\x000a."
    return whole + missing.to_bytes(8, "little")


def _tar(f: Any, member: str = "storages") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:") as archive:
        archive.addfile(tarfile.TarInfo(member))
    return file.getvalue()


def _torchscript(f: Any) -> bytes:
    return _archive(_pickle(b"N"), {"constants.pkl": b"\x80\x02)."})


_FAULTS: tuple[tuple[str, Callable[..., bytes | None]], ...] = (
    (r"record '(data\.pkl|version|data/[^']*)' is missing", _without),
    (r"record 'data/([^']*)' holds (\d+) bytes, its storage needs (\d+)", _of_other_size),
    (r"is not in the folder '[^']*' of the first record", _first_name),
    (r"TorchScript archive", _torchscript),
    (r"tar archive: member 'storages' is missing", lambda f: _tar(f, "other")),
    (r"tar archive (?:of PyTorch before|that torch)", _tar),
    (r"byte order ", lambda f: _archive(_pickle(b"N"), {"byteorder": b"odd"})),
    (r"the file is truncated", _cut),
    (_DAMAGED_DIRECTORY, _with_damaged_directory),  # torch loads most archives with other faults
    (r"element \d+ of a storage of|needs element \d+ of", _outside_of_storage),
    (r"pickle: truncated", _cut_pickle),
    (r"pickle: (?:no )?opcode 0x([0-9a-f]+)", lambda f, code: _archive(_pickle(bytes([int(code, 16)])))),
    (r"pickle: memo entry (\d+) is not set", lambda f, index: _archive(_pickle(b"j" + _bytes_of(index)))),
    (r"\(written by Python 2\?", lambda f: _archive(_pickle(b"U\1\xff"))),
    (r"legacy file: truncated: .* needs (\d+) bytes, (\d+) are left", _cut_legacy),
)


def _is_in_memory(f: Any) -> bool:
    """Return whether a file object is none that the system itself reads."""
    return not isinstance(f, (str, os.PathLike, io.FileIO)) and not isinstance(
        getattr(f, "raw", None), io.FileIO
    )


def _size(f: Any) -> int:
    if isinstance(f, (str, os.PathLike)):
        return Path(f).stat().st_size
    before = f.tell()
    f.seek(0, os.SEEK_END)  # that of mmap.mmap returns nothing
    size = int(f.tell())
    f.seek(before)
    return size


def _archive(pickled: bytes, records: dict[str, bytes | None] | None = None) -> bytes:
    """Return a zip archive as torch.save writes it. A record that is None is left out."""
    contents = {"data.pkl": pickled, "version": b"3\n", **(records or {})}
    return _zip({f"archive/{name}": content for name, content in contents.items() if content is not None})


def _zip(records: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file.getvalue()


def _pickle(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _integer(number: int) -> bytes:
    return b"J" + _bytes_of(number)


def _bytes_of(number: int | str) -> bytes:
    return int(number).to_bytes(4, "little")


def _tensor(key: str, numel: int, size: int = 1, legacy: bool = False) -> bytes:
    """Return the opcodes for a tensor of `size` bytes over a storage of `numel`."""
    storage = _text("storage") + b"ctorch\nByteStorage\n" + _text(key) + _text("cpu") + _integer(numel)
    shape = _integer(0) + _integer(size) + b"\x85" + _integer(1) + b"\x85\x89ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + (b"N" if legacy else b"") + b"tQ" + shape + b"tR"
    )
