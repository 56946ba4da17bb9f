"""Lists HDF5 files by h5py: their datasets, and where these lie.

The core reads plain files by itself (csrc/container/hdf5.h). For all others h5py is asked for every group and dataset,
and the core gets the list: where a dataset's bytes lie, or their reader.

A file says which other files to open, too: external links, external storage, virtual datasets. None is ever followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zerocopy import _core
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.formats.hdf5_dataset import DatasetReader
from zerocopy.loading.formats.hdf5_stream import Image, faults

if TYPE_CHECKING:
    from zerocopy._native import _C  # which needs torch; the command line has none
    from zerocopy.loading.file_objects import PieceReader

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5")

_USER_BLOCKS = [1 << n for n in range(9, 21)]
_DEEPEST = 100
_MAX_LINKS = 16  # links that lead to links: libhdf5's own limit
_COPIES = 4  # copies of a path: in the listing, the document, the names, the result
# Steps through the links in a group's header. They form a list, so each look-up takes as many steps as links.
_MAX_STEPS = 1 << 26
_MAX_DIMENSIONS = 32  # the limit of HDF5 and numpy; a dataset's elements may be arrays, which add dimensions

# numpy's kinds and sizes of numbers that torch has.
_TORCH = {
    "b1": "bool", "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip

# Bytes of opaque elements, by the dataset's attribute "dtype". Keras writes bfloat16 in this way.
_OPAQUE = {"bfloat16": 2} | dict.fromkeys(
    ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"], 1
)
_MAX_DTYPE = 64  # bytes of a dtype's name

#: Bytes of an element, by torch's names.
SIZES = {name: int(kind[1:]) for kind, name in _TORCH.items()} | _OPAQUE

#: Why texts and attributes are left out. Other reasons are those of numbers that no tensor holds.
TEXT, ATTRIBUTE = "text", "attribute"


def recognises(head: bytes, name: str) -> bool:
    """Return whether a file with these first bytes is HDF5. If it begins with a user block, only the name shows it."""
    if head.startswith(SIGNATURE):
        return True
    named = name.endswith(SUFFIXES)
    return named and any(head[at : at + len(SIGNATURE)] == SIGNATURE for at in _USER_BLOCKS)


def import_h5py(target: object = None) -> Any:
    """Return the module; `target` is what it is to write."""
    try:
        import h5py
    except ImportError as error:
        raise UnsupportedError(
            f"{'this HDF5 file' if target is None else target} needs h5py, which is not installed: pip install h5py, "
            "or on Debian apt install python3-h5py"
        ) from error
    return h5py


def listing_of_open(file: int | PieceReader, start: int, name: str) -> list[_C.ListingEntry]:
    """Return the listing of an open file: a descriptor, whose file begins at `start`, or a reader."""
    if isinstance(file, int):
        return listing(Image.of_descriptor(os.dup(file), start, name))
    return listing(Image.of_reader(file))


def listing(image: Image) -> list[_C.ListingEntry]:
    """Return the listing of a file, for the core, which opens it next."""
    h5py = import_h5py()
    with faults(image):
        file = h5py.File(image, "r")
    # Close the file while Python still runs: libhdf5 itself closes open files only when the process is nearly over.
    weakref.finalize(file, h5py.File(file.id).close)
    return list(_Lister(h5py, file, image).listing)


class _Entry(NamedTuple):
    """The fields of a ``_C.ListingEntry``. An entry without a dtype is a group."""

    path: bytes = b""
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    offset: int | None = None
    read: DatasetReader | None = None  # its reader, and in `why` the reason for it
    why: str = ""
    refusal: str = ""
    same: int | None = None  # the number of the entry of the same dataset


def numbers_left_out(left_out: list[tuple[str, str]]) -> list[str]:
    """Return from ``Archive.left_out`` the datasets of numbers that are not tensors, each with the reason."""
    return [f"{name} ({why})" for name, why in left_out if why not in (TEXT, ATTRIBUTE)]


class _Lister:
    """Walks a file by its hard links, each group before its members.

    The listing ends with what is left out: entries without a dtype that say why.
    """

    def __init__(self, h5py: Any, file: Any, image: Image) -> None:
        self._h5py, self._file, self._image = h5py, file, image
        self.listing: list[_Entry] = []
        self._left_out: list[_Entry] = []
        self._places: dict[int, int] = {}  # of datasets, by their address
        self._by_path: dict[str, int] = {}
        self._groups: set[int] = set()
        self._size = int(file.id.get_filesize())
        self._budget = _core.Budget(self._size, "hdf5: paths far longer than the file")
        self._stored = 0  # bytes of the file that are in datasets which are read
        self._steps = 0
        self._soft: dict[str, str] = {}  # where each leads, both from the root
        with faults(image):
            self._group(h5py.h5g.open(file.id, b"/"), "", 0)
            for path in self._soft:
                self._follow(path)
        self.listing += self._left_out

    def _group(self, group: Any, path: str, depth: int) -> None:
        h5 = self._h5py
        information = h5.h5o.get_info(group)
        if information.addr in self._groups:
            raise UnsupportedError(f"hdf5: group {ascii(path)[:200]} has two names")
        if depth > _DEEPEST:
            raise UnsupportedError(f"hdf5: groups nest deeper than {_DEEPEST}")
        self._groups.add(information.addr)
        self._leave_out_attributes(group, path)
        links: dict[bytes, tuple[int, Any]] = {}
        group.links.iterate(lambda name, link: links.update({name: (link.type, link.u)}), info=True)
        for name in group:
            here = f"{path}/{_text(name)}" if path else _text(name)
            kind, address = links[name]
            if kind == h5.h5l.TYPE_SOFT:
                self._look_up(information.hdr.nmesgs, path)
                target = posixpath.join("/", path, _text(group.links.get_val(name)))
                self._budget.charge(_COPIES * (len(here) + len(target)))
                # HDF5 reads ".." as a name, not as the parent group.
                self._soft[here] = "/".join(part for part in target.split("/") if part not in ("", "."))
            if kind != h5.h5l.TYPE_HARD:
                continue  # external ones lead to other files
            if address in self._places:
                self._append(here, self.listing[self._places[address]], self._places[address])
                continue
            self._look_up(information.hdr.nmesgs, path)
            member = h5.h5o.open(group, name)
            if isinstance(member, h5.h5g.GroupID):
                self._append(here, _Entry())
                self._group(member, here, depth + 1)
            elif isinstance(member, h5.h5d.DatasetID):
                self._dataset(member, here)

    def _look_up(self, steps: int, path: str) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise UnsupportedError(
                f"hdf5: group {ascii(path)[:200]} has {steps} links in a row, where each takes a search"
            )

    def _append(self, path: str, entry: _Entry, same: int | None = None) -> None:
        self._budget.charge(_COPIES * (len(path) + 1))
        self._by_path[path] = len(self.listing)
        self.listing.append(entry._replace(path=path.encode(), same=same))

    def _leave_out(self, path: str, why: str) -> None:
        self._budget.charge(_COPIES * (len(path) + 1))
        self._left_out.append(_Entry(path.encode(), "", refusal=why))

    def _leave_out_attributes(self, owner: Any, path: str, used: bytes = b"") -> None:
        names: list[bytes] = []
        self._h5py.h5a.iterate(owner, names.append)
        for name in names:
            if name != used:
                self._leave_out(f"{path}@{name.decode(errors='backslashreplace')}", ATTRIBUTE)

    def _dataset(self, dataset: Any, path: str) -> None:
        entry = self._entry(dataset, path)
        is_opaque = not isinstance(entry, str) and entry.dtype in _OPAQUE
        self._leave_out_attributes(dataset, path, used=b"dtype" if is_opaque else b"")
        if isinstance(entry, str):
            self._leave_out(path, entry)
        else:
            self._places[self._h5py.h5o.get_info(dataset).addr] = len(self.listing)
            self._append(path, entry)

    def _follow(self, path: str) -> None:
        """Add a soft link as a further name of a dataset that hard links, or other soft links, lead to."""
        target, shown = self._soft[path], ascii(path)[:200]
        for _ in range(_MAX_LINKS):
            if target not in self._soft:
                break
            target = self._soft[target]
        place = self._by_path.get(target)
        # The root has no entry. Other links lead to no numbers, to nothing or to another file.
        if place is None and target:
            return
        if place is None or self.listing[place].dtype is None:
            raise UnsupportedError(f"hdf5: soft link {shown} leads to a group, which then has two names")
        self._append(path, self.listing[place], place)

    def _entry(self, dataset: Any, path: str) -> _Entry | str:
        """Return the entry of a dataset, or why it is left out."""
        h5 = self._h5py
        try:
            whole = dataset.dtype
        except TypeError as error:  # a type that numpy does not have
            return ascii(str(error))[1:-1]
        dtype, inner = whole.subdtype or (whole, ())  # an element may be an array
        named = self._opaque(dataset, dtype) or _TORCH.get(f"{dtype.kind}{dtype.itemsize}")
        if named is None or h5.check_enum_dtype(dtype):
            return _why_left_out(h5, dtype)
        space = dataset.get_space()
        empty = space.get_simple_extent_type() == h5.h5s.NULL
        outer = (0,) if empty else tuple(space.shape)
        shape = outer + inner
        if len(shape) > _MAX_DIMENSIONS:
            raise UnsupportedError(f"hdf5: dataset {ascii(path)[:200]} has {len(shape)} dimensions")
        properties = dataset.get_create_plist()
        refusal = _refusal(h5, properties)
        if refusal:
            return _Entry(dtype=named, shape=shape, refusal=refusal)
        offset, why = dataset.get_offset(), ""
        if 0 in shape:
            offset = 0
        # The offset of what was never written is the size of the user block less one, if there is a user block.
        elif offset is None or dataset.get_space_status() == h5.h5d.SPACE_STATUS_NOT_ALLOCATED:
            why = _why_not_at_once(h5, dataset, properties)
        elif named not in _OPAQUE and (
            h5.h5t.py_create(whole, logical=True) != dataset.get_type() or dtype.byteorder == ">"
        ):
            why = "the dataset is big-endian" if dtype.byteorder == ">" else "its elements are not torch's"
        if not why:
            return _Entry(dtype=named, shape=shape, offset=offset)
        self._stored += dataset.get_storage_size()
        if self._stored > self._size:
            raise FormatError("hdf5: datasets share bytes of the file: together they have more than the file")
        reader = DatasetReader(h5, self._file, self._image, path.encode(), dataset, outer)
        return _Entry(dtype=named, shape=shape, read=reader, why=why)

    def _opaque(self, dataset: Any, dtype: Any) -> str | None:
        """Return the dtype that an attribute of a dataset of opaque elements names, or None."""
        if dtype.kind != "V" or dtype.names or not self._h5py.h5a.exists(dataset, b"dtype"):
            return None
        attribute = self._h5py.h5a.open(dataset, b"dtype")
        kind = attribute.get_type()
        if kind.get_class() != self._h5py.h5t.STRING or kind.get_size() > _MAX_DTYPE or attribute.shape != ():
            return None
        value = self._h5py.Dataset(dataset).attrs["dtype"]
        named = value.decode(errors="replace") if isinstance(value, bytes) else value
        return named if _OPAQUE.get(named) == dtype.itemsize else None


def _why_left_out(h5: Any, dtype: Any) -> str:
    if h5.check_string_dtype(dtype) or dtype.kind in "SU":
        return TEXT
    if h5.check_enum_dtype(dtype):
        return "an enumeration"
    if h5.check_ref_dtype(dtype):
        return "references"
    if h5.check_vlen_dtype(dtype):
        return "lists of any length"
    return f"compound: {', '.join(dtype.names)}"[:200] if dtype.names else f"of type {dtype}"


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FormatError(f"hdf5: a name that is not UTF-8: {ascii(name)[:200]}") from None


def _refusal(h5: Any, properties: Any) -> str:
    if properties.get_layout() == h5.h5d.VIRTUAL:
        return "is virtual: made of other datasets, which may be in other files"
    return "has its data in other files" if properties.get_external_count() else ""


def _why_not_at_once(h5: Any, dataset: Any, properties: Any) -> str:
    layout = properties.get_layout()
    if layout == h5.h5d.COMPACT:
        return "the dataset is compact"
    if dataset.get_space_status() == h5.h5d.SPACE_STATUS_NOT_ALLOCATED:
        return "the dataset was never written: all of it is its fill value"
    filters = [properties.get_filter(i)[3].decode(errors="replace") for i in range(properties.get_nfilters())]
    return f"the dataset is chunked ({', '.join(filters)})" if filters else "the dataset is chunked"


@contextlib.contextmanager
def staying(file: bytes | int | None) -> Iterator[None]:
    """Raise if a path or a descriptor leads to another file at a block's end: h5py and the core open it in turn."""
    before = None if file is None else _identity(file)
    yield
    if file is not None and _identity(file) != before:
        raise OSError(
            errno.ESTALE, os.strerror(errno.ESTALE), os.fsdecode(file) if isinstance(file, bytes) else None
        )


def _identity(file: bytes | int) -> tuple[int, ...]:
    status = os.fstat(file) if isinstance(file, int) else Path(os.fsdecode(file)).stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
