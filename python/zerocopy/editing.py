"""``zerocopy.rename_keys`` and ``zerocopy.drop_keys``: checkpoints edited where they are.

The new pickle and a new directory are written behind the end of the archive, and the last bytes of the file, which
say where the directory is, are exchanged in one write within one block of the disk:

    │ records │ directory │ end │                                            as it was
    │ records │ directory │ end │ ............................... │ end │    grown: the copy at the end tells the same
    │ records │ directory │ end │ data.pkl │ directory │ wide end │ end │    written, not in force
    │ records │ directory │ end │ data.pkl │ directory │ wide end │ END │    in force
    │ records │ old record      │ data.pkl │ directory │ wide end │ END │    tidied: every byte is a record's again

torch looks for the end within 64 KiB of the last byte, so a file grows by less at once. It reads all of these states.
zerocopy's own reader, which suffers no byte that belongs to nobody, reads the first and the last: an edit that was
interrupted between them is undone or finished by the next one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from zerocopy import _core, loading
from zerocopy._core import crc32
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.pickle_editing import PickleEditor
from zerocopy.sinks import begin_writing, naming
from zerocopy.zip_writer import Entry, directory, end, plain_local_header, wide_end

_STEP = 60 << 10
_BLOCK = 512
_END, _LOCATOR, _WIDE_END = 22, 20, 56
_CENTRAL, _LOCAL = 46, 30
_FLAG_UTF8 = 0x800
_OLD = b"old/"


def rename_keys(path: str | os.PathLike[str], names: Mapping[str, str]) -> None:
    """Give entries of a checkpoint other keys, without rewriting it.

    Only the pickle, which says what is where, is written anew, at the end of the file. The data stay where they are,
    and so do the tensors of whoever has the file open. Every ``torch.load`` reads the file at every moment, also after
    a ``kill -9`` in the middle: with the old keys or with the new ones. In such a case zerocopy itself reads it again
    after the next edit, which may be an empty one: ``rename_keys(path, {})``.

    Parameters
    ----------
    path : str or PathLike
        What ``torch.save`` (since PyTorch 1.6) or ``zerocopy.save`` wrote.
    names : mapping of str to str
        Old names to new ones: keys of dicts, joined by dots where dicts are in dicts. An entry stays in its dict. All
        are renamed at once, so two may swap their names; an old name is one that the file has now.

    Raises
    ------
    KeyError
        No entry of that name.
    ValueError
        The new name is there already, or is that of another dict.
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError
        As ``zerocopy.load``; nothing has changed.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"model": {"w": torch.ones(2), "b": torch.zeros(1)}}, file.name)
    >>> zerocopy.rename_keys(file.name, {"model.w": "model.weight", "model.b": "model.bias"})
    >>> torch.load(file.name)
    {'model': {'weight': tensor([1., 1.]), 'bias': tensor([0.])}}
    """
    if not isinstance(names, Mapping):
        raise TypeError(f"names is a {type(names).__name__}; a mapping of old names to new ones is wanted")
    _edit(path, lambda editor: editor.rename(names), moves=False)


def drop_keys(path: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Take entries out of a checkpoint, without rewriting it: as :func:`rename_keys` does.

    The data stay in the file; ``zerocopy.save(zerocopy.load(path), path)`` leaves them behind.

    Parameters
    ----------
    path : str or PathLike
        What ``torch.save`` (since PyTorch 1.6) or ``zerocopy.save`` wrote.
    names : iterable of str
        Keys of dicts, joined by dots where dicts are in dicts. All are of the file as it is now and in any order: a
        dict may be among them together with what is in it.

    Raises
    ------
    KeyError, OSError, zerocopy.FormatError, zerocopy.UnsupportedError
        As :func:`rename_keys`.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"model": {"weight": torch.ones(2)}, "optimizer": {"momentum": torch.ones(2)}}, file.name)
    >>> zerocopy.drop_keys(file.name, ["optimizer"])
    >>> torch.load(file.name)
    {'model': {'weight': tensor([1., 1.])}}
    """
    if isinstance(names, str):
        raise TypeError("names is one string; a list of names is wanted")
    # Then storages are not used in the order in which they are there, from which torch works out where they are.
    _edit(path, lambda editor: editor.drop(names), moves=True)


class _Raw(NamedTuple):
    """An entry of a directory as it is there."""

    content: bytes
    offset: int  # of the local header
    size: int
    crc: int

    @property
    def name(self) -> bytes:
        return self.content[_CENTRAL : _CENTRAL + self.name_size]

    @property
    def name_size(self) -> int:
        return int.from_bytes(self.content[28:30], "little")

    def renamed(self, name: bytes) -> _Raw:
        """Return the entry under another name, as long as its own."""
        assert len(name) == self.name_size
        return self._replace(content=self.content[:_CENTRAL] + name + self.content[_CENTRAL + len(name) :])


class _Tail(NamedTuple):
    """The last bytes of an archive, and what they say."""

    content: bytes  # the locator, if there is one, and the end record
    directory: int
    size: int
    end: int  # where the archive that they speak of ends: before the file's end, if it was growing


def _edit(path: str | os.PathLike[str], change: Callable[[PickleEditor], None], *, moves: bool) -> None:
    name = os.fspath(path)
    with (
        _opened(Path(name)) as file,
        naming(os.fsdecode(name)),
        loading.undiagnosed(),
        loading.naming(path, weights_only=True),
    ):
        if _core.container(file, os.fsdecode(name)) != "zip":
            raise UnsupportedError("only what torch.save wrote since PyTorch 1.6 is edited where it is")
        _settle(file)
        records = {
            record[0].partition("/")[2]: record for record in _core.zip_records(file, os.fsdecode(name))
        }
        _, offset, _, deflated, size, _, fault = records["data.pkl"]
        if fault:
            raise FormatError(fault)
        if deflated or "constants.pkl" in records:
            raise UnsupportedError("the pickle is deflated, or the file is a TorchScript archive")
        editor = PickleEditor(os.pread(file, size, offset))
        change(editor)
        pickle = editor.edited()
        if editor.is_changed:
            _replace_pickle(file, pickle, moves)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # one edit at a time
        yield descriptor
    finally:
        os.close(descriptor)


def _replace_pickle(file: int, pickle: bytes, moves: bool) -> None:
    tail = _tail_of(file)
    old_end = tail.end
    raws = _directory_of(file, tail)
    root = raws[0].name.partition(b"/")[0] + b"/"
    retired = [root + b"data.pkl", *([root + b".format_version"] if moves else [])]
    free = _free_names({raw.name for raw in raws}, root)
    kept = [raw.renamed(free(raw.name_size - len(root))) if raw.name in retired else raw for raw in raws]

    hole_name = free(len(_OLD) + 4).decode()
    hole_begin = tail.directory + _LOCAL + len(hole_name.encode())
    hole = os.pread(file, old_end - hole_begin, hole_begin)
    entries = [
        Entry(hole_name, tail.directory, len(hole), crc32(hole), _FLAG_UTF8),
        Entry((root + b"data.pkl").decode(), old_end, len(pickle), crc32(pickle), _FLAG_UTF8),
    ]
    content = b"".join(raw.content for raw in kept) + directory(entries)
    count = len(raws) + len(entries)

    def laid_out(padding: int) -> tuple[bytes, bytes]:
        begin = plain_local_header(entries[1].name, len(pickle), entries[1].crc, padding) + pickle
        at = old_end + len(begin)
        return begin + content + wide_end(count, len(content), at), end(count, len(content), at)

    inner, last = laid_out(0)
    # The file ends with a block: what is written there last is on the disk whole, or not at all. A field has 4 bytes.
    inner, last = laid_out((-(old_end + len(inner) + len(last)) - 4) % _BLOCK + 4)
    new_end = old_end + len(inner) + len(last)

    try:
        _grow(file, tail, new_end)
        _write(file, inner, old_end)
        os.fdatasync(file)
        _write(file, last, new_end - len(last))
        os.fdatasync(file)
    finally:  # a disk that is full, too, leaves what was there
        _settle(file)


def _grow(file: int, tail: _Tail, size: int) -> None:
    """Make the file longer, a little at a time: its last bytes always are those that say where the directory is."""
    at = tail.end
    while at < size:
        at = min(size, (at + _STEP) // _BLOCK * _BLOCK)
        _write(file, tail.content, at - len(tail.content))
    if size - tail.end > _STEP:  # else the old end is within reach, whichever of these bytes the disk has got
        os.fdatasync(file)


def _settle(file: int) -> None:
    """Undo an edit that is not in force, and tidy up after one that is."""
    tail = _tail_of(file)
    if tail.end < os.fstat(file).st_size:
        os.ftruncate(file, tail.end)
        os.fdatasync(file)
        return
    for raw in _directory_of(file, tail):
        if raw.name.partition(b"/")[2].startswith(_OLD):
            _settle_old(file, raw)


def _settle_old(file: int, raw: _Raw) -> None:
    """Give what an old record, or the old directory, was its new header, if it has it not yet."""
    there = os.pread(file, _LOCAL + raw.name_size, raw.offset)
    if there[_LOCAL:] == raw.name:
        return
    if there.startswith(b"PK\3\4"):
        _write(file, raw.name, raw.offset + _LOCAL)
    else:
        _write(file, plain_local_header(raw.name.decode(), raw.size, raw.crc), raw.offset)
    # The edit is on the disk already; a flush for this would take as long as the edit itself.
    begin_writing(file, raw.offset, _LOCAL + raw.name_size)


def _write(file: int, content: bytes, offset: int) -> None:
    at = 0
    while at < len(content):
        at += os.pwrite(file, content[at:], offset + at)


def _tail_of(file: int) -> _Tail:
    size = os.fstat(file).st_size
    content = os.pread(file, _LOCATOR + _END, max(0, size - _LOCATOR - _END))
    last = content[-_END:]
    if len(content) < _LOCATOR + _END or not last.startswith(b"PK\5\6") or last[-2:] != b"\0\0":
        raise UnsupportedError("the archive has a comment at its end, or something else")
    if not content.startswith(b"PK\6\7"):
        length, offset = struct.unpack_from("<II", last, 12)
        return _Tail(last, offset, length, offset + length + _END)
    (at,) = struct.unpack_from("<Q", content, 8)
    wide = os.pread(file, _WIDE_END, at)
    if len(wide) < _WIDE_END or not wide.startswith(b"PK\6\6"):
        raise FormatError("zip: no zip64 end record where the locator says")
    length, offset = struct.unpack_from("<QQ", wide, 40)
    return _Tail(content, offset, length, at + _WIDE_END + _LOCATOR + _END)


def _directory_of(file: int, tail: _Tail) -> list[_Raw]:
    content = os.pread(file, tail.size, tail.directory)
    raws, at = [], 0
    while at + _CENTRAL <= len(content):
        crc, _, size, *lengths = struct.unpack_from("<IIIHHH", content, at + 16)
        (offset,) = struct.unpack_from("<I", content, at + 42)
        raw = content[at : at + _CENTRAL + sum(lengths)]
        raws.append(_Raw(raw, _wide_offset(raw, offset), size, crc))
        at += len(raw)
    return raws


def _wide_offset(raw: bytes, offset: int) -> int:
    """Return the offset of an entry, which its zip64 field has last if 32 bits cannot hold it."""
    if offset != 0xFFFFFFFF:
        return offset
    name_size, extra_size = struct.unpack_from("<HH", raw, 28)
    extra = raw[_CENTRAL + name_size : _CENTRAL + name_size + extra_size]
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == 1:
            return int(struct.unpack_from("<Q", extra, 4 + size - 8)[0])
        extra = extra[4 + size :]
    raise FormatError("zip: an offset of 32 bits, all ones, and no other")


def _free_names(taken: set[bytes], root: bytes) -> Callable[[int], bytes]:
    """Return what makes names of a length that nobody has: of records that no pickle speaks of."""

    def free(length: int) -> bytes:
        for number in range(10 ** (length - len(_OLD))):
            name = root + _OLD + str(number).zfill(length - len(_OLD)).encode()
            if name not in taken:
                taken.add(name)
                return name
        raise OSError(errno.EFBIG, "the file was edited too often: save it anew")

    return free
