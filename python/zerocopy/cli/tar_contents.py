"""Lists the tensors of a tar archive of before PyTorch 0.1.10, without torch and without running its code.

The members are described in ``zerocopy/loading/readers/tar.py``. Their pickles are read by Python's own machine, in
which every class stands for nothing: it is neither imported nor called.
"""

from __future__ import annotations

import math
import pickle
import struct
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar, NamedTuple

from zerocopy.cli.reading import OpenFile
from zerocopy.cli.runner import Trouble
from zerocopy.errors import FormatError

_DTYPES = {
    "Double": ("float64", 8), "Float": ("float32", 4), "Half": ("float16", 2), "Long": ("int64", 8),
    "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1),
}  # fmt: skip
_MAX_PICKLE = 1 << 24  # bytes
_MAX_NODES = 1_000_000  # values that are visited, counted each time that they are reached
_MAX_DEPTH = 100
_MAX_TEXT = 1000  # characters of a value
_MAX_CHARACTERS = 1 << 26  # of all names together
_MAX_DIMENSIONS = 64
_SCALARS = (bool, int, float)
_KEYS = (str, int, float, bytes, type(None))
# Opcodes that allocate what a length in the file says, hash any value, or were no part of protocol 2.
_REFUSED = (
    "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "FRAME", "EMPTY_SET", "ADDITEMS", "FROZENSET", "EXT1", "EXT2",
    "EXT4", "STACK_GLOBAL", "NEWOBJ_EX",
)  # fmt: skip


class _Class(NamedTuple):
    """A class that a pickle names. It was not imported."""

    path: str


class _Object:
    """An object of such a class, with its arguments and its state."""

    def __init__(self, path: str, arguments: Any) -> None:
        self.path, self.parts = path, [arguments]


class _Reference(NamedTuple):
    """A tensor or storage, by its key in the archive."""

    key: int


class _Machine(pickle._Unpickler):
    """Python's machine for pickles, without classes: nothing that a file names is called."""

    stack: list[Any]  # Python's class has these, and its stub does not
    pop_mark: Any
    readline: Any
    dispatch: ClassVar[dict[int, Any]] = {
        code: function
        for code, function in pickle._Unpickler.dispatch.items()
        if code not in {getattr(pickle, name)[0] for name in _REFUSED}
    }

    def find_class(self, module: str, name: str) -> Any:
        return _Class(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and pid:
            return pid[0]
        return _Reference(int(pid))

    def _call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        path = function.path if isinstance(function, _Class) else "unknown"
        if path == "collections.OrderedDict" and isinstance(arguments, tuple):
            items = arguments[0] if arguments else ()
            self.stack.append({})
            for key, value in items:
                _set(self.stack[-1], key, value)
        else:
            self.stack.append(_Object(path, arguments))

    def _instantiate(self, path: Any, arguments: Any) -> None:
        self.stack.append(_Object(path.path if isinstance(path, _Class) else "unknown", arguments))

    def _build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], _Object):
            self.stack[-1].parts.append(state)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set(self.stack[-1], key, value)

    def _set_items(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            _set(self.stack[-1], key, value)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        for key, value in zip(items[::2], items[1::2], strict=True):
            _set(self.stack[-1], key, value)

    def _inst(self) -> None:
        module, name = (self.readline()[:-1].decode("ascii") for _ in range(2))
        self._instantiate(_Class(f"{module}.{name}"), self.pop_mark())

    def _obj(self) -> None:
        cls, *arguments = self.pop_mark()
        self._instantiate(cls, arguments)

    dispatch.update(
        {
            pickle.REDUCE[0]: _call,
            pickle.NEWOBJ[0]: _call,
            pickle.BUILD[0]: _build,
            pickle.SETITEM[0]: _set_item,
            pickle.SETITEMS[0]: _set_items,
            pickle.DICT[0]: _dict,
            pickle.INST[0]: _inst,
            pickle.OBJ[0]: _obj,
        }
    )


def _set(target: Any, key: Any, value: Any) -> None:
    # The hash of a tuple in tuples may take forever.
    if not isinstance(target, dict) or not isinstance(key, _KEYS):
        raise ValueError("a key that is neither text nor a number")
    target[key] = value


class _Storage(NamedTuple):
    number: int  # of the storage whose bytes these are
    key: str
    offset: int  # in the file
    begin: int  # in that storage, in bytes
    dtype: str
    width: int
    nbytes: int


def facts_of(file: OpenFile) -> dict[str, Any]:
    """Return what is in an archive, as ``_core.contents`` returns it for other formats.

    Raises
    ------
    FormatError
        If it is damaged, or is not what torch wrote.
    Trouble
        If its pickle has more than is read.
    """
    with open(file.descriptor, "rb", closefd=False) as stream:
        try:
            archive = tarfile.TarFile(fileobj=stream)
            storages, views = _storages(archive)
            places = storages | views
            tensors = _tensors(archive, places)
            if archive.getmember("pickle").size > _MAX_PICKLE:
                raise Trouble("tar archive: the pickle has more than 16 MiB")
            root = _unpickled(_member(archive, "pickle")[0])
        except (
            tarfile.TarError, struct.error, pickle.UnpicklingError, ValueError, KeyError, IndexError, TypeError,
            AttributeError, EOFError, OverflowError, UnicodeError, RecursionError,
        ) as error:  # fmt: skip
            raise FormatError(f"tar archive: {type(error).__name__}: {error}") from None
    listed: list[tuple[Any, ...]] = []
    others: list[tuple[str, str, Any]] = []
    for name, value, inside in _leaves(root):
        if isinstance(value, _Reference) and value.key in tensors:
            listed.append((name, *tensors[value.key], False, "", inside))
        elif isinstance(value, _Reference):
            if value.key not in places:
                raise FormatError(f"tar archive: no member is called {value.key!r}")
            others.append((name, "storage", str(value.key)))
        elif not inside:
            others.append((name, *_described(value)))
    return {
        "container": "tar",
        "tensors": listed,
        "storages": list(storages.values()),
        "others": others,
        "metadata": None,
    }


def _member(archive: tarfile.TarFile, name: str) -> tuple[BinaryIO, int]:
    """Return a member that lies in the file as it is, and the offset of its content."""
    member = archive.getmember(name)
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise ValueError(f"{name} is not a file")
    return content, member.offset_data  # type: ignore[return-value]


def _unpickled(content: BinaryIO) -> Any:
    return _Machine(content, encoding="latin-1").load()


def _number(content: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, content.read(struct.calcsize(form)))


def _storages(archive: tarfile.TarFile) -> tuple[dict[int, _Storage], dict[int, _Storage]]:
    """Return the storages by their keys, and the views of them."""
    content, start = _member(archive, "storages")
    size = archive.getmember("storages").size
    found: dict[int, _Storage] = {}
    for _ in range(_checked(_unpickled(content), int)):
        key, _, kind = _unpickled(content)
        dtype, width = _DTYPES[kind.path.rpartition(".")[2].removesuffix("Storage")]
        (count,) = _number(content, "<q")
        if not 0 <= count * width <= size - content.tell():
            raise ValueError(f"storage {key} does not lie in the file")
        found[_checked(key, int)] = _Storage(
            len(found), str(key), start + content.tell(), 0, dtype, width, count * width
        )
        content.seek(count * width, 1)
    views = {}
    for key, root, offset, count in _unpickled(content):
        whole = found[root]
        begin, nbytes = offset * whole.width, count * whole.width
        if not 0 <= begin <= begin + nbytes <= whole.nbytes:
            raise ValueError(f"view {key} does not lie in its storage")
        views[_checked(key, int)] = whole._replace(offset=whole.offset + begin, begin=begin, nbytes=nbytes)
    return found, views


def _tensors(archive: tarfile.TarFile, storages: dict[int, _Storage]) -> dict[int, tuple[Any, ...]]:
    """Return the facts about tensors by their keys: dtype, shape, stride, bytes, offset, storage, begin."""
    content, _ = _member(archive, "tensors")
    found = {}
    for _ in range(_checked(_unpickled(content), int)):
        key, over, _ = _unpickled(content)
        (dimensions,) = _number(content, "<i4x")
        if not 0 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {key} has {dimensions} dimensions")
        shape, stride = (_number(content, f"<{dimensions}q") for _ in range(2))
        (offset,) = _number(content, "<q")
        storage = storages[_checked(over, int)]
        last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if min((*shape, *stride, offset), default=0) < 0 or (
            all(shape) and (last + 1) * storage.width > storage.nbytes
        ):
            raise ValueError(f"tensor {key} does not lie in its storage")
        begin = storage.begin + offset * storage.width
        nbytes = math.prod(shape) * storage.width
        place = storage.offset + offset * storage.width
        found[_checked(key, int)] = (storage.dtype, shape, stride, nbytes, place, storage.number, begin)
    return found


def _checked(value: Any, kind: type[int]) -> int:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _leaves(root: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield the values of an object that hold no others: name, value, and the class of the object that has it."""
    pending: list[tuple[str, Any, str, int]] = [("", root, "", 0)]
    nodes, characters = 0, 0
    while pending:
        name, value, inside, depth = pending.pop()
        prefix = f"{name}." if name else ""
        below: list[tuple[str, Any, str]] = []
        if isinstance(value, _Object):
            yield name, value, inside
            for part in value.parts:
                items = (
                    part.items() if isinstance(part, dict) else enumerate(part if _is_list(part) else [part])
                )
                below += [(f"{prefix}{key}", item, value.path) for key, item in items]
        elif isinstance(value, dict):
            below = [(f"{prefix}{key}", item, inside) for key, item in value.items()]
        elif _is_list(value):
            below = [(f"{prefix}{i}", item, inside) for i, item in enumerate(value)]
        else:
            yield name, value, inside
        nodes += len(below)
        characters += sum(len(each[0]) for each in below)
        # A list may hold itself, or one other a million times.
        if nodes > _MAX_NODES or characters > _MAX_CHARACTERS or (below and depth == _MAX_DEPTH):
            raise Trouble("tar archive: absurdly many names")
        pending += [(*each, depth + 1) for each in reversed(below)]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not isinstance(value, (_Reference, _Class))


def _described(value: Any) -> tuple[str, Any]:
    """Return the kind of a value, and the value itself, its length or its class."""
    if value is None:
        return "None", None
    if isinstance(value, str):
        return "str", value[:_MAX_TEXT]
    if isinstance(value, _SCALARS):
        return type(value).__name__, value
    if isinstance(value, _Object):
        return "object", value.path
    if isinstance(value, _Class):
        return "global", value.path
    return type(value).__name__, len(value)
