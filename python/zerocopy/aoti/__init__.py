"""``zerocopy.aoti.load``: programs that AOTInductor compiled, unpacked once, with mapped constants."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from zerocopy import display
from zerocopy._torch import programs
from zerocopy.aoti.package import Package
from zerocopy.errors import UnsupportedError
from zerocopy.export.weights import Weights, with_strides
from zerocopy.loading import loader
from zerocopy.loading.options import LoadOptions

__all__ = ["load"]

_log = logging.getLogger("zerocopy")

_HOW = 'inductor_configs={"aot_inductor.package_constants_in_so": False}'


def load(
    package: str | os.PathLike[str],
    weights: str | os.PathLike[str] | Mapping[str, torch.Tensor] | None = None,
    *,
    name: str = "model",
) -> Any:
    """Load a package that ``torch._inductor.aoti_compile_and_package`` wrote.

    The result is what ``torch._inductor.aoti_load_package`` returns. The package is unpacked once per machine, into
    the folder of results (``ZEROCOPY_CACHE``). The constants of a package that was compiled without them lie in the
    mapping of the file that has them, and all processes share that memory. A package is code: load only what you
    trust.

    Parameters
    ----------
    package : str, PathLike or URL
        A ``.pt2``, or the folder that one was unpacked to.
    weights : path, or mapping of str to Tensor, optional
        Where the constants come from: a checkpoint of any format, or tensors, by the names of the program's weights.
        A ``.pt2`` of ``torch.export.save`` has the constants that are not in a state dict, too. Without `weights`
        those of the package are used: beside the library, or in the library, which copies them to private memory.
    name : str
        Which program of a package with several.

    Returns
    -------
    torch.export.pt2_archive.AOTICompiledModel

    Raises
    ------
    OSError
        The operating system refused: no such file, ...
    zerocopy.FormatError
        The bytes contradict the format.
    zerocopy.UnsupportedError
        This release of PyTorch has no such packages (before 2.9), or the package does not say which shapes it needs.
    zerocopy.CacheError
        The folder of results is open to others.
    KeyError
        The package has no program of that name.
    RuntimeError
        A constant is missing, or has another shape or dtype. From torch: the library cannot be loaded.

    Examples
    --------
    >>> import zerocopy
    >>> model = zerocopy.aoti.load("model.pt2", weights="model.safetensors")  # doctest: +SKIP
    >>> model(torch.ones(1, 3))  # doctest: +SKIP
    """
    if not isinstance(package, (str, os.PathLike)):
        raise TypeError(f"expected package to be a path or a URL, got {type(package).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"expected name to be a str, got {type(name).__name__}")
    opened = Package(os.fspath(package), name)
    given = None if weights is None else Weights.of(weights)
    if given is None and opened.has_weights:
        given = Weights(_own_weights(opened), opened.path)
    folder = opened.folder()
    if given is None and not opened.has_constants_inside(folder):
        if opened.constants(folder):
            raise RuntimeError(
                f"{opened.path}: it was compiled without constants: weights= says where they are"
            )
    elif given is None:
        _log.info(
            "%s has its constants in the library: each process reads and copies them. Compiled with %s, and loaded "
            "with weights=, processes share them",
            opened.path,
            _HOW,
        )
    model = _loaded(opened, folder)
    if given is not None:
        _give(model, given, opened, folder)
    return model


def _own_weights(package: Package) -> Mapping[str, torch.Tensor]:
    tensors = loader.load_weights(package.path, LoadOptions())
    of_model = tensors.get(package.name)
    return of_model if type(of_model) is dict else tensors


def _loaded(package: Package, folder: str) -> Any:
    try:
        return programs.compiled_program(folder, package.name)
    except RuntimeError as error:
        if folder == package.path or "dlopen" in str(error):
            raise
        _log.info("this release of PyTorch takes no folder, and unpacks %s itself: %s", package.path, error)
        return programs.compiled_program(package.path, package.name)


def _give(model: Any, weights: Weights, package: Package, folder: str) -> None:
    """Make a program use tensors as its constants, without a copy."""
    constants = package.constants(folder)
    if constants is None:
        raise UnsupportedError(f"{package.path}: it has no source that says which constants it needs")

    def why_not(name: str, found: torch.Tensor) -> str:
        wanted = constants[name]
        if found.is_meta:
            return "is on the meta device, and has no values"
        if (found.dtype, tuple(found.shape)) == (wanted.dtype, wanted.shape):
            return ""
        return f"is {found.dtype} {tuple(found.shape)}, and the program needs {wanted.dtype} {wanted.shape}"

    taken = weights.taken({each: each for each in constants}, why_not)
    device = model.get_metadata().get("AOTI_DEVICE_KEY", "cpu")
    placed = {
        each: with_strides(tensor.detach(), constants[each].stride).to(device)
        for each, tensor in taken.items()
    }
    model.load_constants(placed, check_full_update=True, user_managed=True)
    copied = sum(
        tensor.nbytes for each, tensor in placed.items() if tensor.data_ptr() != taken[each].data_ptr()
    )
    if copied:
        _log.info(
            "%s: %s of constants were copied, to another layout or device", package.path, display.size(copied)
        )
    # The program has pointers only.
    weakref.finalize(model.loader, lambda kept: None, list(placed.values())).atexit = False
