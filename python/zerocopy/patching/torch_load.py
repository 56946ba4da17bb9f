"""One call of the patched ``torch.load``: zerocopy's, or the original's."""

from __future__ import annotations

import inspect
import io
import logging
import os
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zerocopy import _torch, environment, remote
from zerocopy._native import _C
from zerocopy._torch import context, safe_globals
from zerocopy.errors import Error, UnsupportedError
from zerocopy.loading import diagnosis, inputs, loader
from zerocopy.loading.device import staging
from zerocopy.loading.options import LoadOptions, checked
from zerocopy.loading.readers import legacy, unpickler
from zerocopy.process import tally

Function = Callable[..., Any]

log = logging.getLogger("zerocopy")

_UNSET: Any = object()
_PICKLE_ARGUMENTS = ("fix_imports", "encoding", "errors", "buffers")
_ASKED_FOR = ("read", "readline", "seek", "tell")  # the attributes that torch.load requires of a file object


class RefusedError(RuntimeError, pickle.UnpicklingError):
    """Raised for a refused file on torch before 2.6.

    Such a file is not passed on to torch.load there, because its weights_only unpacks tar archives and runs
    TorchScript. These releases raise a RuntimeError for a fault of the archive, and an UnpicklingError for a fault of
    the pickle.
    """


class Call(NamedTuple):
    """The arguments of a call of torch.load."""

    f: Any
    map_location: Any
    pickle_module: Any
    weights_only: Any
    mmap: Any
    pickle_load_args: dict[str, Any]


def load_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's torch.load."""
    parameters = inspect.signature(original).parameters
    default = parameters["weights_only"].default if "weights_only" in parameters else False
    takes_mmap = "mmap" in parameters

    def load(*args: Any, **kwargs: Any) -> Any:
        # Unpickling a tensor calls torch.load on a BytesIO. That takes about 25 us, so this case is tested first.
        if kwargs.get("weights_only", default) is False and args and _is_pickle_in_memory(args[0]):
            return _hand_over(original, "a pickle in memory, which torch loads just as fast", *args, **kwargs)
        _torch.log_usage("torch.load")
        try:
            call = _call(*args, **kwargs)
        except TypeError:  # the original raises its own message
            return original(*args, **kwargs)
        weights_only = _weights_only(call, default)
        if weights_only is None:
            reason = "environment variables make torch warn or raise about weights_only"
            return _hand_over(original, reason, *args, **kwargs)
        reason = _why_not_ours(call, weights_only, takes_mmap)
        if reason:
            return _hand_over(original, reason, *args, **kwargs)
        is_left = call.weights_only is _UNSET or call.weights_only is None
        if default is None and is_left and not weights_only and call.pickle_module is None:
            _warn_of_default(original)  # 2.4 and 2.5: False, with a warning
        return _load(original, call, weights_only)

    return load


def _warn_of_default(original: Function) -> None:
    """Make `original` issue its warning: call it on a tiny file without weights_only."""
    file = io.BytesIO()
    torch.save(None, file)
    file.seek(0)
    original(file, mmap=False)  # because a program may have made mmap=True the default


def _call(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: Any = _UNSET,
    mmap: Any = _UNSET,
    **pickle_load_args: Any,
) -> Call:
    return Call(f, map_location, pickle_module, weights_only, mmap, pickle_load_args)


def _weights_only(call: Call, default: Any) -> bool | None:
    """Return the effective ``weights_only`` of a call; None if the environment makes torch warn or raise."""
    given = default if call.weights_only is _UNSET else call.weights_only
    forced = environment.is_true("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    if not _torch.safe_by_default():
        return forced or bool(given)
    if (forced or given is None) and environment.is_true("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        return None
    if forced:
        return True
    return call.pickle_module is None if given is None else bool(given)


def _why_not_ours(call: Call, weights_only: bool, takes_mmap: bool) -> str:
    """Return why this call's arguments send it to the original, or an empty string."""
    is_path = isinstance(call.f, (str, os.PathLike))
    if (
        not is_path
        and not isinstance(call.f, io.IOBase)
        and not all(hasattr(call.f, name) for name in _ASKED_FOR)
    ):
        return "neither a path nor a file object that can seek"
    if remote.is_url(call.f):
        return "a URL, which torch does not know"
    if isinstance(call.f, io.TextIOBase):
        return "a file open in text mode"
    if is_path and os.fsdecode(call.f).endswith(".safetensors"):
        return "a safetensors file"
    if weights_only and (call.pickle_module is not None or call.pickle_load_args):
        return "arguments for pickle, under weights_only"
    if call.mmap is not _UNSET and not takes_mmap:
        return "mmap=, which this release does not know"
    maps = context.maps_by_default() if call.mmap in (_UNSET, None) else call.mmap
    if maps and not (is_path and context.maps_privately()):
        return "mmap=True with something other than a path, or with a shared mapping"
    if isinstance(call.map_location, bytes):
        return "map_location is bytes, which torch refuses"
    if not weights_only and call.pickle_module in (None, pickle) and not _are_known(call.pickle_load_args):
        return "arguments that pickle refuses"
    if not weights_only and _makes_storages(call.pickle_module or pickle):
        return "an Unpickler that makes the storages itself"
    return context.why_load_is_special(call.map_location)


def _are_known(pickle_load_args: dict[str, Any]) -> bool:
    """Return whether pickle accepts these arguments. For others, the error has to come from torch's own call."""
    kinds = {"encoding": str, "errors": str}
    return all(
        name in _PICKLE_ARGUMENTS and isinstance(value, kinds.get(name, object))
        for name, value in pickle_load_args.items()
    )


def _makes_storages(pickle_module: Any) -> bool:
    base = getattr(pickle_module, "Unpickler", None)
    return not isinstance(base, type) or unpickler.makes_storages(base)


def _is_pickle_in_memory(file: Any) -> bool:
    if type(file) is not io.BytesIO or environment.is_true("TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        return False
    begin = file.tell()
    head = file.read(1)
    file.seek(begin)
    return head == pickle.PROTO


def _load(original: Function, call: Call, weights_only: bool) -> Any:
    f, begin = call.f, inputs.position_of(call.f)

    def hand_over(reason: str) -> Any:
        if begin is not None:
            f.seek(begin)
        mmap = {} if call.mmap is _UNSET else {"mmap": call.mmap}
        return _hand_over(
            original,
            reason.removeprefix(f"{inputs.name_of(f)}: "),
            f,
            call.map_location,
            call.pickle_module,
            weights_only=weights_only,
            **mmap,
            **call.pickle_load_args,
        )

    placement: Counter[str] = Counter()

    def require(archive: _C.Archive, options: LoadOptions) -> None:
        _require_only_a_load(archive, options)
        placement.update(_placement_of(archive, options))

    try:
        mmap = None if call.mmap is _UNSET else call.mmap
        options = checked(
            call.map_location, call.pickle_module, weights_only, mmap, pickle_args=call.pickle_load_args
        )
        result = loader.load_diagnosed(f, options, require)
        tally.add_served(placement)
        return result
    except diagnosis.UNKNOWN as error:  # the original raises its own error for such a file
        reason = str(error)
        if ": this is " in reason:  # a diagnosis, which the original's error does not contain
            log.warning("%s", reason)
    except (Error, pickle.UnpicklingError) as error:
        is_damaged = not isinstance(error, UnsupportedError) or isinstance(error, diagnosis.DIAGNOSES)
        if weights_only and is_damaged and not _torch.safe_by_default():
            tally.add_failed()
            # Old releases say this for a refused global, and programs match on it.
            words = "Unsupported class: " if isinstance(error, pickle.UnpicklingError) else ""
            raise RefusedError(f"{words}{error}") from error
        if not weights_only and isinstance(error, pickle.UnpicklingError):  # pickle's own message
            tally.add_failed()
            raise
        reason = str(error)
    except (OSError, MemoryError):
        tally.add_failed()
        raise
    except RuntimeError as error:  # from map_location
        tally.add_failed()
        if weights_only and not _torch.safe_by_default():
            raise RefusedError(str(error)) from error
        raise
    return hand_over(reason)


def _require_only_a_load(archive: _C.Archive, options: LoadOptions) -> None:
    """Raise for archives that torch has to load: it runs TorchScript, and compares the source of classes."""
    loader.require_no_program(archive, options)
    if options.weights_only:
        return
    if archive.is_torchscript:
        raise UnsupportedError("this is a TorchScript archive")
    if archive.container == "legacy" and legacy.has_sources(archive, **options.pickle_args):
        raise UnsupportedError("the file has the source of its classes, which torch compares")


def _placement_of(archive: _C.Archive, options: LoadOptions) -> Counter[str]:
    """Count an archive's bytes by how they are loaded; empty if no summary will be logged when the process ends."""
    if not tally.will_be_reported() or archive.is_torchscript:
        return Counter()
    found: Counter[str] = Counter()
    try:
        for storage in archive.explain():
            staged = staging.stages_all(options.map_location)
            found["copied to the device" if staged else storage.how] += storage.nbytes
    except (Error, pickle.UnpicklingError):  # loading the file raises it again
        return Counter()
    return found


def _hand_over(original: Function, reason: str, *args: Any, **kwargs: Any) -> Any:
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s goes to torch.load: %s", inputs.name_of(args[0] if args else kwargs.get("f")), reason)
    tally.add_left(reason)
    safe_globals.import_all_awaited()
    return original(*args, **kwargs)
