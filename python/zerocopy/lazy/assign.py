"""``zerocopy.assign`` and ``zerocopy.load_model``: make a module's tensors use a checkpoint's memory."""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from zerocopy._torch import context, modules
from zerocopy._typing import File, MapLocation
from zerocopy.display import listed
from zerocopy.lazy.handover import Handover
from zerocopy.lazy.placeholder import materialized
from zerocopy.loading import inputs, loader
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.options import checked

_SAFETENSORS_HEAD = 9  # bytes: the size of the header, and its brace
_PICKLE_ARGUMENTS = {"encoding", "errors", "fix_imports"}
_LOAD_ARGUMENTS = {*inspect.signature(loader.load).parameters, *_PICKLE_ARGUMENTS}


def assign(
    module: torch.nn.Module, state_dict: Mapping[str, Any], *, strict: bool = True, keep_dtype: bool = True
) -> modules.IncompatibleKeys:
    """Load a state dict into a module, whose parameters and buffers then share the state dict's memory.

    Does what ``module.load_state_dict(state_dict, strict)`` does, with the same keys, checks, hooks and messages. A
    tensor is copied only to another dtype, device or order of strides, into memory that other tensors share, and for
    the second of two parameters that one tensor of the state dict would fill.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters stay the same objects, so optimizers, hooks and tied weights keep working. Before PyTorch 2.3, a
        parameter on the ``meta`` device is replaced by a new object. Devices and ``requires_grad`` stay too, but
        tensors on ``meta`` go to the device of the state dict's tensors.
    state_dict : mapping
        A mapping of names to tensors: a ``dict``, the result of ``zerocopy.load``, or a checkpoint of placeholders.
    strict : bool
        Whether missing and unexpected keys are an error.
    keep_dtype : bool
        True: tensors of another dtype are converted to the module's dtype, which makes a copy. False: the module takes
        over the dtypes and kinds of the state dict's tensors, as with ``load_state_dict(assign=True)``.

    Returns
    -------
    NamedTuple
        ``missing_keys`` and ``unexpected_keys``, as from ``load_state_dict``.

    Raises
    ------
    RuntimeError
        As from ``load_state_dict``: shapes that differ, and missing and unexpected keys with `strict`. The
        tensors that fit have been assigned.
    TypeError
        `module` is not a module, or `state_dict` is not a mapping.

    Warns
    -----
    UserWarning
        Some tensors of the module are still on the ``meta`` device, because the state dict does not have them. Or,
        without `strict`, every name in the state dict has a prefix that keeps it from matching.

    Examples
    --------
    >>> import torch, zerocopy
    >>> module = torch.nn.Linear(2, 1, device="meta")
    >>> zerocopy.assign(module, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    <All keys matched successfully>
    >>> module(torch.tensor([3.0, 4.0])).tolist()
    [7.0]
    """
    _require_module(module)
    return _load(module, state_dict, strict, Handover(module, keep_dtype=keep_dtype, moves=False))


def load_model(
    module: torch.nn.Module,
    path: File,
    *,
    strict: bool = True,
    assign: bool = True,
    device: MapLocation = None,
    map_location: MapLocation = None,
    keep_dtype: bool = True,
    **load_args: Any,
) -> modules.IncompatibleKeys:
    """Load a state dict into a module, whose parameters and buffers then lie in the mapping of the file.

    Parameters
    ----------
    module : torch.nn.Module
        As for ``zerocopy.assign``: parameters stay the objects that they are. Its tensors may be on the ``meta``
        device.
    path : str, PathLike, binary file object or buffer
        As in ``zerocopy.load``. A ``.safetensors`` file holds tied tensors once, under one name. That name fills all
        names that the tensor has in the module.
    strict : bool
        Whether missing keys, unexpected keys and, as for ``zerocopy.load``, a wrong index of shards are an error.
    assign : bool
        True: the file's tensors become the module's, as in ``zerocopy.assign``. False: they are copied into the
        module's own memory, and take no private memory beyond that.
    device, map_location : optional
        Where the module's tensors on the CPU or on ``meta`` go, in any form of `map_location`. Tensors on another
        device stay there. Default: all tensors stay, except that those on ``meta`` go where the file says.
    keep_dtype : bool
        As for ``zerocopy.assign``. True: the file's tensors of another dtype are converted to the module's dtype.
    **load_args
        Further arguments of ``zerocopy.load``: ``mode``, ``backend``, ``weights_only``, ...

    Returns
    -------
    NamedTuple
        ``missing_keys`` and ``unexpected_keys``, as from ``load_state_dict``.

    Raises
    ------
    TypeError
        `module` is not a module, or the file does not hold a state dict.
    ValueError
        Both `device` and `map_location` are given, or neither `assign` nor `keep_dtype` is true.
    RuntimeError
        As from ``load_state_dict``: shapes that differ, and missing and unexpected keys with `strict`.
    Exception
        As from ``zerocopy.load``.

    Warns
    -----
    UserWarning
        As ``zerocopy.assign``.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> model = torch.nn.Linear(2, 1, device="meta")
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, file.name)
    ...     zerocopy.load_model(model, file.name)
    <All keys matched successfully>
    >>> model.weight
    Parameter containing:
    tensor([[1., 1.]], requires_grad=True)
    """
    _require_module(module)
    if strangers := load_args.keys() - _LOAD_ARGUMENTS:
        raise TypeError(f"load_model() got an unexpected keyword argument {min(strangers)!r}")
    if device is not None and map_location is not None:
        raise ValueError("expected device or map_location, which are names of one argument, got both")
    if not (assign or keep_dtype):
        raise ValueError("keep_dtype=False needs assign=True: a copy has the dtype of the module")
    device = map_location if device is None else device
    begin = inputs.position_of(path)
    pickle_args = {name: load_args.pop(name) for name in _PICKLE_ARGUMENTS & load_args.keys()}
    # Inference tensors could not become those of a module that is going to be trained.
    with context.advising_device(), torch.inference_mode(False):
        options = checked(device, strict=strict, pickle_args=pickle_args, **load_args)
        state_dict = loader.load_weights(path, options)
    _require_state_dict(state_dict, inputs.name_of(path))
    if _is_safetensors(path, begin, strict):
        state_dict = _with_tied_names(module, state_dict)
    handover = Handover(module, keep_dtype=keep_dtype, moves=device is not None)
    return _load(module, state_dict, strict, handover if assign else None)


def _require_module(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"expected module, the first argument, to be a torch.nn.Module, got {type(module).__name__}"
        )


def _is_safetensors(f: Any, begin: int | None, strict: bool) -> bool:
    """Return whether a file that begins at `begin`, or the shards of an index, are in the format that has no ties."""
    match inputs.located(f, strict):
        case shard_index.Index() as index:
            return any(shard.suffix == ".safetensors" for shard in index.shards)
        case dcp_metadata.Folder():
            return False
        case found:
            f = found
    if hasattr(f, "read") and begin is None:
        return False
    end = inputs.position_of(f)
    with inputs.binary_file(f, begin) as file:
        head = file.read(_SAFETENSORS_HEAD)
        if end is not None:
            f.seek(end)
    return head[-1:] == b"{" and len(head) == _SAFETENSORS_HEAD


def _with_tied_names(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state dict that has every name of a module's tied tensor if it has one of them.

    A file of safetensors holds each tensor once. ``safetensors.torch.load_model`` does not report the other names as
    missing either.
    """
    entries = module.state_dict(keep_vars=True)
    if all(name in state_dict for name in entries):
        return state_dict
    shown, found = {name: _shown(tensor) for name, tensor in entries.items()}, dict[Any, str]()
    for name in entries:
        if name in state_dict:
            found.setdefault(shown[name], name)
    added = {
        name: state_dict[found[shown[name]]]
        for name in entries
        if name not in state_dict and shown[name] in found
    }
    return {**state_dict, **added}


def _shown(value: Any) -> Any:
    """Return a key that is equal for tensors that show the same memory in the same way, or are one object."""
    place = modules.place_of(value) if isinstance(value, torch.Tensor) else None
    return place if place and place[0] else id(value)  # tensors without memory have the address 0


def _require_state_dict(found: Any, name: str) -> None:
    """Raise ``TypeError`` unless this is a state dict. torch would report all keys as missing, or check nothing."""
    if isinstance(found, torch.nn.Module):
        raise TypeError(f"{name}: expected a state dict, found a whole module; give its state_dict()")
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise TypeError(f"{name}: expected a state dict (a mapping of str to Tensor), found {type(found)}")
    inner = [key for key, value in found.items() if isinstance(value, Mapping) and _has_tensors(value)]
    inner = [key for key in inner if not key.endswith(modules.EXTRA_STATE)]
    if inner and not _has_tensors(found):
        raise TypeError(
            f"{name}: expected a state dict, found mappings that may contain one: {', '.join(map(repr, inner))}. "
            f"Load the file with zerocopy.load, and give one of them to zerocopy.assign"
        )


def _has_tensors(mapping: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in mapping.values())


def _load(
    module: torch.nn.Module, state_dict: Mapping[str, Any], strict: bool, handover: Handover | None
) -> modules.IncompatibleKeys:
    """Call ``load_state_dict``, with a handover before each module takes its entries."""
    # torch raises its own error for anything but a mapping.
    entries = _entries(state_dict) if isinstance(state_dict, Mapping) else state_dict
    with contextlib.ExitStack() as hooks:
        if handover is not None:
            for each in module.modules():
                hooks.enter_context(modules.before_loading(each, handover))
        try:
            found = module.load_state_dict(entries, strict=strict)
        except RuntimeError as error:
            error.args = ("\n\t".join([str(error), *_prefix_hints(module, entries)]),)
            raise
    # A hook may have renamed the keys.
    hints = _prefix_hints(module, entries) if any(found) else ()
    for hint in (*hints, *_meta_hints(module, entries)):
        warnings.warn(hint, stacklevel=3)
    return found


def _entries(state_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict of real tensors."""
    entries = OrderedDict((key, materialized(value)) for key, value in state_dict.items())
    if (metadata := getattr(state_dict, "_metadata", None)) is not None:
        entries._metadata = metadata  # type: ignore[attr-defined]
    return entries


def _prefix_hints(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remedy if no key is the module's because all begin with one prefix."""
    names = modules.named_tensors(module).keys()
    if not state_dict or not names.isdisjoint(state_dict):
        return
    first = next(iter(state_dict))
    for prefix in (first[: dot.end()] for dot in re.finditer(r"\.", first)):
        rest = {key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)}
        if len(rest) == len(state_dict) and not names.isdisjoint(rest):
            yield (
                f"Every key in state_dict begins with {prefix!r}, which the module's names do not. "
                f"DistributedDataParallel writes 'module.', torch.compile '_orig_mod.'. Load the file with "
                f"zerocopy.load, and give zerocopy.assign the state dict "
                f"{{key.removeprefix({prefix!r}): value for key, value in state_dict.items()}}"
            )
            return


def _meta_hints(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remedy for tensors that stay on the meta device because the state dict lacks them."""
    held = modules.named_tensors(module)
    left = [name for name, tensor in held.items() if tensor.is_meta]
    if left := [name for name in left if not getattr(state_dict.get(name), "is_meta", False)]:
        yield (
            f"{len(left)} of {len(held)} tensors of the module stay on the meta device, without values, because the "
            f"state dict does not have them: {listed(left)}. Give them values (module.NAME = torch.tensor(...)), or "
            f"make the module on the CPU, where zerocopy copies nothing either"
        )
