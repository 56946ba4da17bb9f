"""A new file that takes an old one's name when it is whole, and not before.

A process that has the old file open or mapped keeps its bytes. The new file does not have a name while it is
written (O_TMPFILE), so a killed process leaves nothing behind. Some file systems lack O_TMPFILE. There the
new file lies beside the target and is locked while it is written. A lock ends with its process, so the next
process that writes there can delete an abandoned file.

Nobody may read the new file who may not read the old one, at any moment. It is private until its owner, its access
control list and its other extended attributes are those of the old one. Where the system refuses to give it the old
group or list, those permissions are not given to anybody else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy.process import interrupts
from zerocopy.process.os_errors import naming
from zerocopy.saving import saves_under_way

_logger = logging.getLogger("zerocopy")

_SUFFIX = ".part"
_TOKEN = re.compile("[0-9a-f]{16}")  # between the prefix and the suffix
_MAX_STEM_LENGTH = 100  # bytes: names have 255
_ACL = "system.posix_acl_access"
# A file system, or a kernel, that makes no files without a name.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
# A file system without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# struct flock: type, whence, start, length (0: to the end), process.
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class NewFile(NamedTuple):
    """The file that is being written."""

    descriptor: int
    name: Path | None  # beside the target, if it has one yet

    @property
    def path(self) -> Path:
        """A path to open it by."""
        return self.name or Path(f"/proc/self/fd/{self.descriptor}")


def path_of_file(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to be written: where a name is one of folders, which a ``Path`` forgets, raise."""
    path = os.fsdecode(name)
    if not path or path.endswith(("/", "/.")):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))  # says what is wrong; makes no file
    return Path(path)


@interrupts.deferred()
def is_special(path: Path) -> bool:
    """Return whether it is a pipe, a terminal, a file without a name (/dev/fd/3), ...: what cannot be replaced."""
    while True:
        try:
            held = os.open(path, os.O_PATH | os.O_CLOEXEC)  # so that no other file gets its number
        except OSError:
            return False
        try:
            status = os.fstat(held)
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                return True
            if is_at(os.path.realpath(path), status):
                return False
            if is_at(path, status):  # else another took its place just now
                return True
        finally:
            os.close(held)


def is_at(path: str | Path, file: os.stat_result | None) -> bool:
    """Return whether a path leads to the file that has this status."""
    try:
        return file is not None and os.path.samestat(Path(path).stat(), file)
    except OSError:
        return False


@contextlib.contextmanager
def replacing(
    target: Path,
    *,
    has_name: bool = False,
    is_new: bool = False,
    like: Path | None = None,
    gives_way: bool = True,
) -> Iterator[NewFile]:
    """Give a new file, which takes the name, mode, owner and attributes of `target` if all goes well.

    Then the file and its name are on the disk when this returns. If anything goes wrong nothing has changed.
    With `has_name` it has a name from the beginning, which libhdf5 wants. With `is_new` it takes no other file's
    name, and the mode, owner and attributes of `like`. With `gives_way` a save to `target` that was called after this
    one keeps the name, if it has it already. OSError for what cannot be replaced.
    """
    with interrupts.deferred():  # while a file or a name is made that nobody would delete
        if is_special(target):
            why = "not a regular file: it cannot be replaced atomically"
            raise OSError(errno.EINVAL, why, os.fspath(target))
        target = Path(os.path.realpath(target))
        new = _created_privately(target, like or target, has_name)
        try:
            with saves_under_way.taking_turn(target) as turn:
                with interrupts.allowed():
                    yield new
                    with naming(target):
                        os.fsync(new.descriptor)
                    for other in saves_under_way.to(target):
                        other.join()
                with naming(target), saves_under_way.one_at_a_time():
                    if turn.is_superseded and gives_way and not is_new:
                        if new.name is not None:
                            new.name.unlink(missing_ok=True)
                    else:
                        lost = _take_after_present(new, like or target)
                        if is_new:
                            _link(new, target)
                        else:
                            new = _named(new, target)
                            new.path.replace(target)
                            saves_under_way.note_content(target, turn)
                        _warn_of(lost, target)
        except BaseException:
            if new.name is not None:
                new.name.unlink(missing_ok=True)
            raise
        finally:
            os.close(new.descriptor)
        _sync_folder(target.parent)


def created_for(target: Path, *, has_name: bool = False) -> NewFile:
    """Return a new file, locked if it has a name, with the mode, owner and attributes of `target`.

    `target` must not be a symbolic link or a special file. The file is the caller's: to close, and to delete
    if it has a name.
    """
    new = _created_privately(target, target, has_name)
    try:
        with naming(target):
            _warn_of(_take_after_present(new, target), target)
    except BaseException:
        if new.name is not None:
            new.name.unlink(missing_ok=True)
        os.close(new.descriptor)
        raise
    return new


def _created_privately(target: Path, like: Path, has_name: bool) -> NewFile:
    """Return a new file that nobody else may read, if there is one that it is to be like."""
    with naming(target):
        old = _status_of(like)
        if old is not None:
            _require_replaceable(like, old)
        _delete_leftovers(target)
        return _created(target, 0o666 if old is None else 0o600, has_name)


def _take_after_present(new: NewFile, target: Path) -> list[str]:
    """Copy the mode, owner and attributes of `target` as they are now. Return those that this user may not set.

    The program may have changed them since the new file was created.
    """
    old = _status_of(target)
    return [] if old is None else _take_after(new.descriptor, target, old)


def _warn_of(lost: list[str], target: Path) -> None:
    if lost:
        _logger.warning("%s: not kept, as this user may not set it: %s", target, ", ".join(lost))


def _status_of(target: Path) -> os.stat_result | None:
    try:
        return target.stat()
    except FileNotFoundError:
        return None


def _require_replaceable(target: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # The folder alone decides about names. Yet who forbids to write to a file does not want it replaced either.
    if not os.access(target, os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _prefix_of(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:_MAX_STEM_LENGTH])}."


def new_name(target: Path) -> Path:
    """Return a name for a new file beside the target, which is known for a leftover if its writer is killed."""
    return target.with_name(f"{_prefix_of(target)}{secrets.token_hex(8)}{_SUFFIX}")


def _created(target: Path, mode: int, has_name: bool) -> NewFile:
    if not has_name:
        try:
            return NewFile(os.open(target.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, mode), None)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
    while True:
        path = new_name(target)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            # Another writer may have taken it for a leftover before it was locked.
            if _lock(descriptor) and path.stat().st_ino == os.fstat(descriptor).st_ino:
                return NewFile(descriptor, path)
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        os.close(descriptor)


def _named(new: NewFile, target: Path) -> NewFile:
    """Give the new file a name beside the target: the system cannot link it to a name that another file has."""
    if new.name is not None:
        return new
    _lock(new.descriptor)  # from now on it could be taken for a leftover
    while True:
        name = new_name(target)
        with contextlib.suppress(FileExistsError):
            # With a descriptor for a folder Python follows the symbolic link, and without one it does not.
            os.link(new.path, name, src_dir_fd=new.descriptor)
            return new._replace(name=name)


def _link(new: NewFile, target: Path) -> None:
    """Give the new file a name that no other file has."""
    if new.name is None:
        os.link(new.path, target, src_dir_fd=new.descriptor)
        return
    try:
        os.link(new.name, target)
    except OSError as error:
        if error.errno not in _NO_LINKS or os.path.lexists(target):
            raise
        new.name.replace(target)
        return
    with contextlib.suppress(OSError):  # the next writer deletes it
        new.name.unlink()


def _lock(descriptor: int) -> bool:
    """Lock a file, if nobody else has. True too where the file system has no locks: then nothing is a leftover."""
    try:
        # Not flock(), which h5py uses on the files it writes.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _delete_leftovers(target: Path) -> None:
    prefix = _prefix_of(target)
    with contextlib.suppress(PermissionError):  # a folder that may be written to and not listed
        for path in target.parent.iterdir():
            token = path.name.removeprefix(prefix).removesuffix(_SUFFIX)
            if path.name == f"{prefix}{token}{_SUFFIX}" and _TOKEN.fullmatch(token):
                with contextlib.suppress(OSError):  # locked by who writes it, or not ours to delete
                    _delete_unlocked(path)


def _delete_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        path.unlink()
    finally:
        os.close(descriptor)


def _take_after(descriptor: int, target: Path, old: os.stat_result) -> list[str]:
    """Give a private file the owner, the attributes and, at last, the mode of the old one. Return what it lacks."""
    for owner in ((old.st_uid, -1), (-1, old.st_gid)):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *owner)
    new, mode = os.fstat(descriptor), stat.S_IMODE(old.st_mode)
    lost = []
    if new.st_uid != old.st_uid:
        mode &= ~stat.S_ISUID
        lost.append(f"the owner {old.st_uid}")
    has_group = new.st_gid == old.st_gid
    if not has_group:
        lost.append(f"the group {old.st_gid}")
        # the new group, and everybody, may do what both the old group and everybody could
        both = mode >> 3 & mode & 0o7
        mode = mode & stat.S_IRWXU | both << 3 | both
    attributes = _attributes(target)
    if _ACL not in attributes:  # one may come from the folder
        with contextlib.suppress(OSError):
            os.removexattr(descriptor, _ACL)
    for name, value in attributes.items():
        if name == _ACL and not has_group:
            mode &= stat.S_IRWXU
            lost.append("the access control list")
            continue
        try:
            os.setxattr(descriptor, name, value)
        except OSError:  # not every file system has them all, and not everybody may set them
            if name == _ACL:
                mode &= stat.S_IRWXU
                lost.append("the access control list")
    os.fchmod(descriptor, mode)
    return lost


def _attributes(path: Path) -> dict[str, bytes]:
    """Return the extended attributes that can be read."""
    attributes = {}
    try:
        for name in os.listxattr(path):
            with contextlib.suppress(OSError):
                attributes[name] = os.getxattr(path, name)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
    return attributes


def _sync_folder(folder: Path) -> None:
    """Have the new name written to the disk. The data are there, and the old name is gone: nothing to undo."""
    with contextlib.suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
