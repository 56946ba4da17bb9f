"""``zerocopy.jit.load``: TorchScript modules, whose parameters lie in the mapping of their file."""

from __future__ import annotations

from typing import Any

from zerocopy import remote
from zerocopy._native import _C
from zerocopy._typing import Device, File, Mode
from zerocopy.errors import FormatError
from zerocopy.loading import backends, diagnosis, error_context, inputs
from zerocopy.loading.readers import torchscript

__all__ = ["load"]


def __dir__() -> list[str]:
    return __all__


_FLATBUFFER = slice(4, 8), b"PTMF"


def load(
    path_or_buffer: File,
    map_location: Device = None,
    _extra_files: dict[str, Any] | None = None,
    *,
    mode: Mode | None = None,
) -> Any:
    """Load what ``torch.jit.save`` wrote, without reading the data until it is touched.

    A TorchScript archive is a program: load only what you trust, as with ``torch.jit.load``. The result is what that
    returns. Its parameters, buffers and constants lie in one mapping of the file, or in the buffer that was given.

    Parameters
    ----------
    path_or_buffer : str, PathLike, URL, binary file object or buffer
        A file object is read from its current position. One that is not simply a file on disk is read to its end,
        and its storages are copied.
    map_location : str or torch.device, optional
        As in ``torch.jit.load``.
    _extra_files : dict, optional
        As in ``torch.jit.load``: the names of extra files; their contents, as bytes, become the values.
    mode : {"c", "r", "r+"}, optional
        As in ``zerocopy.load``. Default for files: "c", copy-on-write. Default for buffers: a writable buffer is
        shared, so in-place writes reach it; the storages of a read-only buffer are copied (``mode="r"`` shares these
        too).

    Returns
    -------
    torch.jit.ScriptModule

    Raises
    ------
    OSError
        The operating system refused: no such file, ... ``errno.ESTALE``: the file was written to meanwhile.
    zerocopy.FormatError
        The bytes contradict the format: truncated, overlapping, storages out of range, not a TorchScript archive.
    zerocopy.UnsupportedError
        Legal, but not supported: encryption, a newer version of the format, ...
    RuntimeError
        From torch: the program is faulty, or wants what this release does not have.

    Notes
    -----
    A file that only torch's own loader reads goes to that, with one INFO line of the logger "zerocopy" that says why:
    archives of before PyTorch 1.0.1, big-endian ones, those in the flatbuffer format.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), file.name)
    ...     module = zerocopy.jit.load(file.name)
    >>> module(torch.ones(1, 3)).shape
    torch.Size([1, 2])
    """
    check_extra_files(_extra_files)
    path_or_buffer = remote.opened(path_or_buffer)
    begin = inputs.position_of(path_or_buffer)
    try:
        return attempt(path_or_buffer, map_location, _extra_files, mode)
    except torchscript.StockOnlyError as reason:
        return torchscript.load_by_stock(path_or_buffer, begin, map_location, _extra_files, reason)


def attempt(f: Any, map_location: Any, extra_files: dict[str, Any] | None, mode: str | None = None) -> Any:
    """Load a module. Raise ``StockOnlyError`` for an archive that only torch's own loader reads."""
    begin = inputs.position_of(f)
    with error_context.public(f, weights_only=False):
        archive = _opened(f, mode)
        module = torchscript.load(archive, map_location, extra_files)
        if begin is not None:
            f.seek(begin + archive.end)
        return module


def check_extra_files(extra_files: Any) -> None:
    """Raise ``TypeError`` unless `extra_files` is what ``torch.jit.load`` takes."""
    if extra_files is None:
        return
    if not isinstance(extra_files, dict):
        raise TypeError(f"_extra_files must be a dict of names, not {type(extra_files).__name__}")
    for name in extra_files:
        if not isinstance(name, str):
            raise TypeError(f"_extra_files must have strings for names, not {name!r}")


def _opened(f: Any, mode: str | None) -> _C.Archive:
    backend = backends.backend_of("auto", None)
    try:
        return inputs.open_archive(f, mode or _default_mode(f), backend)
    except (diagnosis.TarError, diagnosis.UnknownPickleError) as error:
        raise FormatError(f"not a TorchScript archive: {error}") from None
    except diagnosis.UnknownFormatError:
        begin, (place, magic) = inputs.position_of(f), _FLATBUFFER
        if hasattr(f, "read") and begin is None:
            raise
        with inputs.binary_file(f, begin) as file:
            if file.read(place.stop)[place] == magic:
                raise torchscript.StockOnlyError("a TorchScript module in the flatbuffer format") from None
        raise


def _default_mode(f: Any) -> str:
    try:
        with memoryview(f) as view:
            return "c" if view.readonly else "r"
    except TypeError:  # a path, or a file object
        return "c"
