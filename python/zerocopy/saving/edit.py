"""``zerocopy.rename_keys`` and ``zerocopy.drop_keys``: checkpoints edited where they are.

The new pickle and a new directory are written behind the end of the archive, and the last bytes of the file, which
say where the directory is, are exchanged in one write within one block of the disk:

    │ records │ directory │ end │                                                   as it was
    │ records │ directory │ end │ mark │ ............................... │ end │    grown: the copy tells the same
    │ records │ directory │ end │ mark │ data.pkl │ directory │ wide end │ end │    written, not in force
    │ records │ directory │ end │ mark │ data.pkl │ directory │ wide end │ END │    in force
    │ records │ old record      │ mark │ data.pkl │ directory │ wide end │ END │    tidied: every byte is a record's

torch looks for the end within 64 KiB of the last byte, so a file grows by less at once. It reads all of these states.
zerocopy's own reader refuses bytes that belong to no record, so it reads the first state and the last. The next edit
undoes or finishes an edit that was interrupted between them. It cuts off only what begins with the mark, a record of
fixed bytes. It writes nothing before the arguments are valid, and the archive that is going to be left is valid too.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from zerocopy import _core
from zerocopy._core import crc32
from zerocopy._native import _C
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading import error_context, inputs
from zerocopy.process.os_errors import naming
from zerocopy.saving import saves_under_way
from zerocopy.saving.pickle_editor import PickleEditor
from zerocopy.saving.sink import begin_writing
from zerocopy.saving.zip_tail import LOCAL_HEADER, MARK, OLD, FreeNames, RawEntry, Tail, directory_of, tail_of
from zerocopy.saving.zip_writer import Entry, directory, end, plain_local_header, wide_end

_STEP = 60 << 10
_BLOCK = 512
_FLAG_UTF8 = 0x800
# Linux reserves no memory for such a mapping, so the file may be larger than the memory. Python 3.13 has the name.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def rename_keys(path: str | os.PathLike[str], names: Mapping[str, str]) -> None:
    """Give entries of a checkpoint other keys, without rewriting it.

    Only the pickle, which says what is where, is written anew, at the end of the file. The data stay where they are,
    and so do the tensors of whoever has the file open. Every ``torch.load`` reads the file at every moment, also after
    a ``kill -9`` in the middle: with the old keys or with the new ones. In such a case zerocopy itself reads it again
    after the next edit, which may be an empty one: ``rename_keys(path, {})``.

    Parameters
    ----------
    path : str or PathLike
        A file of ``torch.save`` (since PyTorch 1.6) or ``zerocopy.save``.
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
        raise TypeError(
            f"expected names to be a mapping of old names to new ones, got {type(names).__name__}"
        )
    _edit(path, lambda editor: editor.rename(names), moves=False)


def drop_keys(path: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Take entries out of a checkpoint, without rewriting it: as :func:`rename_keys` does.

    The data stay in the file; ``zerocopy.save(zerocopy.load(path), path)`` leaves them behind.

    Parameters
    ----------
    path : str or PathLike
        A file of ``torch.save`` (since PyTorch 1.6) or ``zerocopy.save``.
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
        raise TypeError("expected names to be a list of names, got one string")
    if not isinstance(names, Iterable):
        raise TypeError(f"expected names to be a list of names, got {type(names).__name__}")
    # Then storages are not used in the order in which they are there, from which torch works out where they are.
    _edit(path, lambda editor: editor.drop(names), moves=True)


def _edit(path: str | os.PathLike[str], change: Callable[[PickleEditor], None], *, moves: bool) -> None:
    name = os.fspath(path)
    for earlier in saves_under_way.to(Path(os.path.realpath(os.fsdecode(name)))):
        earlier.join()
    with (
        _opened(name) as file,
        naming(os.fsdecode(name)),
        error_context.public(path),
    ):
        if _core.container(file, os.fsdecode(name)) != "zip":
            raise UnsupportedError(
                "only files that torch.save wrote since PyTorch 1.6 can be edited in place"
            )
        tail = tail_of(file)
        raws = directory_of(file, tail)
        headers = _missing_headers(file, tail, raws)
        archive = _checked_archive(file, tail.end, headers)
        _require_own_rest(file, tail, raws)
        if archive.is_torchscript or any(raw.is_deflated for raw in raws if raw.short_name == b"data.pkl"):
            raise UnsupportedError("the pickle is deflated, or the file is a TorchScript archive")
        editor = PickleEditor(archive.pickle())
        change(editor)
        pickle = editor.edited()
        # Everything is valid: from here on the file is written to.
        if tail.end < os.fstat(file).st_size:
            os.ftruncate(file, tail.end)
            os.fdatasync(file)
        _write_headers(file, headers)
        if editor.is_changed:
            _replace_pickle(file, tail, raws, pickle, moves)


def _require_own_rest(file: int, tail: Tail, raws: list[RawEntry]) -> None:
    """Refuse bytes behind the archive unless an unfinished edit has left them."""
    mark = FreeNames(raws).mark
    if tail.end < os.fstat(file).st_size and os.pread(file, len(mark), tail.end) != mark:
        raise FormatError(
            f"the archive ends at {tail.end:#x}, and bytes of another origin follow; "
            "expected the end of the file there"
        )


def _checked_archive(file: int, size: int, headers: list[tuple[int, bytes]]) -> _C.Archive:
    """Return the archive that the first bytes of a file are, with these headers. The file itself is not written to."""
    copy = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
    for offset, header in headers:
        copy[offset : offset + len(header)] = header
    return inputs.open_archive(memoryview(copy))  # a mapping object would be read like a file


@contextlib.contextmanager
def _opened(name: str | bytes) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # one edit at a time
        yield descriptor
    finally:
        # An exception may keep a mapping, which has a duplicate of the descriptor: closing alone would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _replace_pickle(file: int, tail: Tail, raws: list[RawEntry], pickle: bytes, moves: bool) -> None:
    old_end, names = tail.end, FreeNames(raws)
    mark, root = names.mark, names.root
    retired = [b"data.pkl", *([b".format_version"] if moves else [])]
    kept = [
        raw.renamed(names.free(raw.name_size - len(root))) if raw.short_name in retired else raw
        for raw in raws
    ]

    hole_name = names.free(len(OLD) + 4).decode()
    hole_begin = tail.directory + LOCAL_HEADER + len(hole_name.encode())
    hole = os.pread(file, old_end - hole_begin, hole_begin)
    begin = old_end + len(mark)
    entries = [
        Entry(hole_name, tail.directory, len(hole), crc32(hole), _FLAG_UTF8),
        Entry(names.mark_name.decode(), old_end, len(MARK), crc32(MARK), _FLAG_UTF8),
        Entry((root + b"data.pkl").decode(), begin, len(pickle), crc32(pickle), _FLAG_UTF8),
    ]
    content = b"".join(raw.content for raw in kept) + directory(entries)
    count = len(raws) + len(entries)

    def laid_out(padding: int) -> tuple[bytes, bytes]:
        record = plain_local_header(entries[-1].name, len(pickle), entries[-1].crc, padding) + pickle
        at = begin + len(record)
        return mark + record + content + wide_end(count, len(content), at), end(count, len(content), at)

    inner, last = laid_out(0)
    # The file ends with a block: what is written there last is on the disk whole, or not at all. A field has 4 bytes.
    inner, last = laid_out((-(old_end + len(inner) + len(last)) - 4) % _BLOCK + 4)
    new_end = old_end + len(inner) + len(last)

    try:
        _grow(file, tail, mark, new_end)
        _write(file, inner, old_end)
        os.fdatasync(file)
        _write(file, last, new_end - len(last))
        os.fdatasync(file)
    except BaseException:  # a full disk, too, leaves the old archive: all of its bytes are still there
        os.ftruncate(file, old_end)
        os.fdatasync(file)
        raise
    tail = tail_of(file)
    _write_headers(file, _missing_headers(file, tail, directory_of(file, tail)))


def _grow(file: int, tail: Tail, mark: bytes, size: int) -> None:
    """Make the file longer, a little at a time: its last bytes always are those that say where the directory is."""
    at, before = tail.end, mark
    while at < size:
        begin, at = at, min(size, (at + _STEP) // _BLOCK * _BLOCK)
        if before:  # with the mark in one write
            _write(file, before.ljust(at - begin - len(tail.content), b"\0") + tail.content, begin)
            before = b""
        else:
            _write(file, tail.content, at - len(tail.content))
    if size - tail.end > _STEP:  # else the old end is within reach, whichever of these bytes the disk has got
        os.fdatasync(file)


def _missing_headers(file: int, tail: Tail, raws: list[RawEntry]) -> list[tuple[int, bytes]]:
    """Return the new headers of old records, and of the old directory, that they have not yet, by their offsets."""
    missing = []
    for raw in raws:
        if not raw.short_name.startswith(OLD):
            continue
        there = os.pread(file, LOCAL_HEADER + raw.name_size, raw.offset)
        if there[LOCAL_HEADER:] == raw.name:
            continue
        if there.startswith(b"PK\3\4") and there[LOCAL_HEADER:].endswith((b"/data.pkl", b"/.format_version")):
            missing.append((raw.offset + LOCAL_HEADER, raw.name))
        elif there.startswith(b"PK\1\2") and raw.offset + len(there) < tail.end:
            name = raw.name.decode(errors="replace")  # the archive check refuses other names
            missing.append((raw.offset, plain_local_header(name, raw.size, raw.crc)[: len(there)]))
    return missing


def _write_headers(file: int, headers: list[tuple[int, bytes]]) -> None:
    for offset, header in headers:
        _write(file, header, offset)
        # The edit is on the disk already; a flush for this would take as long as the edit itself.
        begin_writing(file, offset, len(header))


def _write(file: int, content: bytes, offset: int) -> None:
    at = 0
    while at < len(content):
        at += os.pwrite(file, content[at:], offset + at)
