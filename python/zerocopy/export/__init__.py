"""``zerocopy.export.load``: programs of ``torch.export``, whose weights lie in the mapping of their file."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from zerocopy import remote
from zerocopy._native import _C
from zerocopy._torch import programs
from zerocopy._typing import File
from zerocopy.display import listed
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.export.weights import Weights
from zerocopy.loading import archives, error_context, inputs, loader
from zerocopy.loading.options import LoadOptions

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["load"]

_SCRIPT_OBJECT = "custom_obj_"
_TENSOR = "tensor_"


def load(
    f: File,
    *,
    weights: File | Mapping[str, torch.Tensor] | None = None,
    name: str = "model",
    weights_only: bool = True,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: dict[str, int] | None = None,
) -> ExportedProgram:
    """Load a program that ``torch.export.save`` wrote, without reading its weights until they are touched.

    The result is what ``torch.export.load`` returns. Its weights and constants lie in one mapping of the file.
    A program is code: load only what you trust, as with ``torch.export.load``.

    Parameters
    ----------
    f : str, PathLike, URL, binary file object or buffer
        As in ``zerocopy.load``.
    weights : path, or mapping of str to Tensor, optional
        Where the weights come from in place of the archive: a checkpoint of any format, or tensors, by the names of
        the program's state dict. Shapes and dtypes must be those of the program. Other names are ignored.
    name : str
        Which program of an archive with several.
    weights_only : bool
        True: all that is pickled in the archive (weights of subclasses, sample inputs, objects) is read as
        ``zerocopy.load`` reads a checkpoint, which runs nothing of the file. False: pickles may run any code.
    extra_files : dict, optional
        As in ``torch.export.load``: gets the texts that were saved beside the program.
    expected_opset_version : dict, optional
        As in ``torch.export.load``.

    Returns
    -------
    torch.export.ExportedProgram

    Raises
    ------
    OSError
        The operating system refused: no such file, ...
    zerocopy.FormatError
        The bytes contradict the format.
    zerocopy.UnsupportedError
        This release of PyTorch, or the one that wrote the archive, has another kind of archive (before 2.9).
    pickle.UnpicklingError
        With `weights_only`: something that is pickled names globals that are on no allow-list.
    KeyError
        The archive has no program of that name.
    RuntimeError
        `weights` lacks a weight, or has it in another shape or dtype.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    >>> with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
    ...     torch.export.save(program, file.name)
    ...     loaded = zerocopy.export.load(file.name)
    >>> loaded.module()(torch.ones(1, 3)).shape
    torch.Size([1, 2])
    """
    if not isinstance(name, str):
        raise TypeError(f"expected name to be a str, got {type(name).__name__}")
    if extra_files is not None and not isinstance(extra_files, dict):
        raise TypeError(f"expected extra_files to be a dict, got {type(extra_files).__name__}")
    programs.require_export()
    given = None if weights is None else Weights.of(weights)
    f = remote.opened(f)
    begin = inputs.position_of(f)
    with error_context.public(f, weights_only):
        archive = inputs.open_archive(f)
        program = _Program(archive, name, LoadOptions(weights_only=weights_only)).load(
            given, expected_opset_version
        )
        extra = _extra_files(archive) if extra_files is not None else {}
        archive.require_unchanged()
    if extra_files is not None:
        extra_files.update(extra)
    if begin is not None:
        f.seek(begin + archive.end)  # type: ignore[union-attr]
    return program


class _Program:
    """A program of an archive."""

    def __init__(self, archive: _C.Archive, name: str, options: LoadOptions) -> None:
        if archive.container != "pt2":
            raise UnsupportedError(
                f"expected a program of torch.export, found a file of format {archive.container}"
            )
        self._archive, self._name, self._options = archive, name, options
        names = _between("models/", archive.record_names(), ".json")
        if name not in names:
            if not names:
                raise UnsupportedError(
                    "it has no program of torch.export: zerocopy.aoti.load loads compiled ones"
                )
            raise KeyError(f"no program {name!r}: found {listed(map(repr, names))}")

    def load(self, weights: Weights | None, opset_version: dict[str, int] | None) -> Any:
        """Return the program."""
        tensors = archives.load(self._archive, self._options)
        if type(tensors.get(self._name)) is dict:  # of several programs
            tensors = tensors[self._name]
        described = self._described("weights")
        state_dict = {name: tensors[name] for name in described}
        if weights is not None:
            state_dict = weights.in_place_of(state_dict, described)
        constants = {
            name: tensors[name] if path.startswith(_TENSOR) else self._object(path)
            for name, path in self._described("constants").items()
        }
        sample = self._record(f"data/sample_inputs/{self._name}.pt")
        inputs = self._unpickled(sample) if self._options.weights_only and sample else sample
        graph = self._record(f"models/{self._name}.json")
        return programs.exported_program(graph, state_dict, constants, inputs, opset_version)

    def _described(self, kind: str) -> dict[str, str]:
        """Return the name and the record of each weight or constant, in the order of the archive."""
        described = json.loads(self._record(f"data/{kind}/{self._name}_{kind}_config.json"))["config"]
        return {name: entry["path_name"] for name, entry in described.items()}

    def _object(self, path: str) -> Any:
        content = self._record(f"data/constants/{path}")
        if not self._options.weights_only:
            return (
                programs.script_object(content) if path.startswith(_SCRIPT_OBJECT) else pickle.loads(content)
            )
        if path.startswith(_SCRIPT_OBJECT):
            raise pickle.UnpicklingError(
                f"{path} is an object of a custom class of C++, which a safe load does not make. If you trust the "
                "file, load it with weights_only=False"
            )
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as wrapped:
            wrapped.writestr("archive/data.pkl", content)
            wrapped.writestr("archive/version", b"3\n")
        return self._unpickled(file.getvalue())

    def _unpickled(self, content: bytes) -> Any:
        return loader.load_weights(memoryview(content), self._options)

    def _record(self, name: str) -> bytes:
        return self._archive.record(name.encode())


def _between(folder: str, records: list[bytes], ending: str) -> list[str]:
    names = [record.decode(errors="backslashreplace") for record in records]
    return [
        name[len(folder) : len(name) - len(ending)]
        for name in names
        if name.startswith(folder) and name.endswith(ending)
    ]


def _extra_files(archive: _C.Archive) -> dict[str, str]:
    try:
        return {
            name: archive.record(f"extra/{name}".encode()).decode()
            for name in _between("extra/", archive.record_names(), "")
        }
    except UnicodeDecodeError as error:
        raise FormatError(f"an extra file is not UTF-8: {error}") from None
