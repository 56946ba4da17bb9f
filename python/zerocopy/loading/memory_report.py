"""``zerocopy.memory``: how much of which mapped file is in memory, and whose memory that is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy import notebook
from zerocopy.display import count, shown, size
from zerocopy.process.control_group import ControlGroup, control_group

_HEADS = ("mapped", "resident", "private", "shared", "file")

# Libraries, and other files that the system maps for every program. /dev/shm is a folder of the user's files.
_OF_THE_SYSTEM = re.compile("/usr/lib/|/usr/share/locale/|/dev/(?!shm/)|/SYSV")

_SENT = "/dev/shm/torch_"  # names that torch.multiprocessing gives

_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S{4}) [0-9a-f]+ (\S+ \d+) +(/.*)")
_FIELD = re.compile(r"(Size|Rss|Anonymous): +(\d+) kB")


class FileMemory(NamedTuple):
    """One mapped file.

    Attributes
    ----------
    path : str
        The file; with " (deleted)" behind it if it has no name any more.
    mapped : int
        Bytes of address space over it. They cost nothing by themselves.
    resident : int
        Bytes of it that this process has touched and that are in memory.
    private : int
        Those of them that are this process's own, since they were written to (copy-on-write).
    shared : int
        The others: the page cache, which all processes share and the system takes back when it wants memory.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1 << 20)}, file.name)
    >>> state = zerocopy.load(file.name)
    >>> next(found.mapped for found in zerocopy.memory().files if found.path == file.name) >= 1 << 22
    True
    """

    path: str
    mapped: int
    resident: int
    private: int
    shared: int


class MemoryReport(NamedTuple):
    """The result of :func:`memory`. ``str()`` of it is a table; a notebook shows an HTML table.

    Attributes
    ----------
    files : tuple of FileMemory
        By path.
    anonymous : int
        Bytes of private memory without a file: allocations of Python and torch, tensors of ``backend="pread"`` and
        ``"direct"``, and tensors that ``zerocopy.load_model`` converts to the module's dtype.
    control_group : ControlGroup or None
        The memory that the process's control group is charged with, for a container the number that counts; None
        where the kernel shows none.

    Examples
    --------
    >>> import zerocopy
    >>> report = zerocopy.memory()
    >>> report.mapped == sum(found.mapped for found in report.files)
    True
    """

    files: tuple[FileMemory, ...]
    anonymous: int
    control_group: ControlGroup | None = None

    @property
    def mapped(self) -> int:
        """Bytes mapped, of all files."""
        return sum(file.mapped for file in self.files)

    @property
    def resident(self) -> int:
        """Bytes resident, of all files."""
        return sum(file.resident for file in self.files)

    @property
    def private(self) -> int:
        """Bytes private, of all files."""
        return sum(file.private for file in self.files)

    @property
    def shared(self) -> int:
        """Bytes shared, of all files."""
        return sum(file.shared for file in self.files)

    def __str__(self) -> str:
        lines = [
            "  ".join([*(f"{cell:>10}" for cell in cells), name]) for *cells, name in [_HEADS, *self._rows()]
        ]
        return "\n".join([*lines, *self._below()])

    def __repr__(self) -> str:
        return f"<MemoryReport\n{self}>"

    def _below(self) -> Iterator[str]:
        yield f"private memory of no file: {size(self.anonymous)}"
        if self.control_group is not None:
            group = self.control_group
            limit = "without limit" if group.limit is None else f"of {size(group.limit)}"
            cache = "" if group.page_cache is None else f", {size(group.page_cache)} of them page cache"
            yield f"control group: charged with {size(group.charged)} {limit}{cache}"

    def _repr_html_(self) -> str:
        *sums, _ = _row(self, "")
        title = (
            ", ".join(map(" ".join, zip(_HEADS, sums, strict=False)))
            + f" in {count(len(self.files), 'file')}"
        )
        rows = list(self._files())
        more = notebook.left_out(len(rows), "file")
        return notebook.table(title, _HEADS, rows, more=more, notes=self._below())

    def _files(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each file, and one for all tensors that came from other processes."""
        sent = [file for file in self.files if file.path.startswith(_SENT)]
        for file in self.files:
            if len(sent) < 2 or not file.path.startswith(_SENT):
                yield _row(file, file.path)
        if len(sent) > 1:
            yield _row(MemoryReport(tuple(sent), 0), f"{_SENT}*: {len(sent)} files of torch.multiprocessing")

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield from self._files()
        if len(self.files) != 1:
            yield _row(self, "together")


def _row(counted: FileMemory | MemoryReport, name: str) -> tuple[str, ...]:
    sizes = (counted.mapped, counted.resident, counted.private, counted.shared)
    return *map(size, sizes), shown(name, None)


def memory() -> MemoryReport:
    """Return how much memory the mapped files of this process take, file by file.

    Every file that is mapped as data counts, also those that the program mapped itself; programs and libraries do not.

    Returns
    -------
    MemoryReport

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1 << 20)}, file.name)
    >>> state = zerocopy.load(file.name)
    >>> [found] = [found for found in zerocopy.memory().files if found.path == file.name]
    >>> found.mapped >= 1 << 22, found.private
    (True, 0)
    >>> state["weight"].zero_().sum()
    tensor(0.)
    >>> [found] = [found for found in zerocopy.memory().files if found.path == file.name]
    >>> found.private >= 1 << 22
    True
    """
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="surrogateescape") as lines:
        return _report(lines)._replace(control_group=control_group())


def _report(lines: Iterable[str]) -> MemoryReport:
    """Read the lines of /proc/self/smaps."""
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    programs: set[tuple[str, str]] = set()
    fields = nowhere = Counter[str]()
    for line in lines:
        if head := _HEAD.match(line):
            key = (head[3], head[2])
            if "x" in head[1]:
                programs.add(key)
            fields = found[key]
        elif "-" in line.split(" ", 1)[0]:
            fields = nowhere
        elif field := _FIELD.match(line):
            fields[field[1]] += int(field[2]) * 1024
    files = tuple(
        FileMemory(
            path,
            sizes["Size"],
            sizes["Rss"],
            sizes["Anonymous"],
            max(0, sizes["Rss"] - sizes["Anonymous"]),
        )
        for (path, inode), sizes in sorted(found.items())
        if (path, inode) not in programs and not _OF_THE_SYSTEM.match(path)
    )
    return MemoryReport(files, nowhere["Anonymous"])
