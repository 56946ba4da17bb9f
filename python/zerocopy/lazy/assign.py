"""``zerocopy.assign`` and ``zerocopy.load_model``: a checkpoint's tensors become those of a module."""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from zerocopy._torch import modules
from zerocopy._typing import File
from zerocopy.lazy.placeholder import materialized
from zerocopy.loading import inputs, loader
from zerocopy.loading.formats import dcp_metadata, shard_index

Slot = tuple[torch.nn.Module, str]

_SAFETENSORS_HEAD = 9  # bytes: the size of the header, and its brace


def assign(
    module: torch.nn.Module, state_dict: Mapping[str, Any], *, strict: bool = True
) -> modules.IncompatibleKeys:
    """Make the tensors of a state dict a module's parameters and buffers, without copying or reading a byte.

    Does on every release what ``module.load_state_dict(state_dict, strict, assign=True)`` does since PyTorch
    2.1: keys, checks, hooks and messages are torch's own. One difference: a parameter in several places of
    the module (tied weights) stays one parameter, unless the state dict has different tensors for these
    places.

    Parameters
    ----------
    module : torch.nn.Module
        Its tensors may be on the ``meta`` device. Afterwards they have the devices and dtypes of the state dict, and
        the ``requires_grad`` that the module's had. An optimizer has to be made afterwards.
    state_dict : mapping
        Of names to tensors: a ``dict``, what ``zerocopy.load`` returned, a checkpoint of placeholders. A
        ``torch.nn.Parameter`` in it becomes the module's as that object.
    strict : bool
        Whether missing and unexpected keys are an error.

    Returns
    -------
    NamedTuple
        ``missing_keys`` and ``unexpected_keys``, as from ``load_state_dict``.

    Raises
    ------
    RuntimeError
        As from ``load_state_dict``: shapes that differ, and missing and unexpected keys with `strict`. Valid
        tensors have been assigned.
    TypeError
        `module` is not a module, or `state_dict` is not a mapping.

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
    return _assign(module, state_dict, strict)


def load_model(
    module: torch.nn.Module,
    path: File,
    *,
    strict: bool = True,
    assign: bool = True,
    device: Any = None,
    **load_args: Any,
) -> modules.IncompatibleKeys:
    """Load a state dict into a module, whose parameters and buffers then lie in the mapping of the file.

    Parameters
    ----------
    module : torch.nn.Module
        Its tensors may be on the ``meta`` device.
    path : str, PathLike, binary file object or buffer
        As in ``zerocopy.load``. Of a ``.safetensors`` file, which holds tied tensors once, one name is enough for all
        names that a tensor has in the module.
    strict : bool
        Whether missing and unexpected keys are an error.
    assign : bool
        True: the file's tensors become the module's, as in ``zerocopy.assign``. An optimizer has to be made
        afterwards. False: they are copied into the module's tensors, as ``load_state_dict`` does; of private memory
        that takes the module's own and no more.
    device : optional
        Where the file's tensors go, in any form of `map_location`. Default: where the file says.
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
    RuntimeError
        As from ``load_state_dict``: shapes that differ, and missing and unexpected keys with `strict`.
    Exception
        As from ``zerocopy.load``.

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
    begin = inputs.position_of(path)
    state_dict = loader.load(path, device, **load_args)
    _require_state_dict(state_dict, inputs.name_of(path))
    if _is_safetensors(path, begin):
        state_dict = _with_tied_names(module, state_dict)
    if assign:
        return _assign(module, state_dict, strict)
    return module.load_state_dict(state_dict, strict=strict)


def _require_module(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"expected module, the first argument, to be a torch.nn.Module, got {type(module).__name__}"
        )


def _is_safetensors(f: Any, begin: int | None) -> bool:
    """Return whether a file that begins at `begin`, or the shards of an index, are in the format that has no ties."""
    match inputs.located(f):
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
    """Return a state dict with all names of each tensor of the module of which it has one.

    A file of safetensors holds each tensor once. ``safetensors.torch.load_model`` takes the other names for no missing
    keys either.
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
    """Return what is equal for tensors that show the same memory in the same way, and for one object."""
    place = modules.place_of(value) if isinstance(value, torch.Tensor) else None
    return place if place and place[0] else id(value)  # tensors without memory have the address 0


def _require_state_dict(found: Any, name: str) -> None:
    """``TypeError`` for what torch would call a state dict with every key missing, or not look at at all."""
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


def _assign(module: torch.nn.Module, state_dict: Mapping[str, Any], strict: bool) -> modules.IncompatibleKeys:
    # torch raises its own error for anything but a mapping.
    entries = _entries(state_dict) if isinstance(state_dict, Mapping) else state_dict
    ties = _ties(module)
    try:
        if "assign" in inspect.signature(module.load_state_dict).parameters:
            return module.load_state_dict(entries, strict=strict, assign=True)
        return _load_by_handover(module, entries, strict)
    finally:
        for tensor, slots in ties.items():
            _tie_again(tensor, slots)


def _entries(state_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return a state dict of real tensors that torch may write to."""
    entries = OrderedDict((key, materialized(value)) for key, value in state_dict.items())
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        # torch notes assign=True in there, and would go by that when the caller loads the same state dict again.
        entries._metadata = {prefix: dict(local) for prefix, local in metadata.items()}  # type: ignore[attr-defined]
    return entries


class _Handover:
    """Stands for a tensor in a state dict: where torch would copy it into its slot in a module, it goes there itself.

    More than this torch does not ask of what it copies.
    """

    is_meta = True  # torch warns of copying to meta tensors, which this does not

    def __init__(self, tensor: torch.Tensor, slot: Slot) -> None:
        self._tensor = tensor
        self._slot = slot

    @property
    def shape(self) -> torch.Size:
        return self._tensor.shape

    def size(self) -> torch.Size:
        return self._tensor.size()

    def __getitem__(self, index: int) -> _Handover:
        return _Handover(self._tensor[index], self._slot)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.copy_:
            return NotImplemented
        target, source = args
        source._take_the_place_of(target)
        return target

    def _take_the_place_of(self, target: torch.Tensor) -> None:
        tensor = self._tensor
        if isinstance(target, torch.nn.Parameter):
            if isinstance(tensor, torch.nn.Parameter):
                tensor.requires_grad_(target.requires_grad)
            else:
                tensor = torch.nn.Parameter(tensor, requires_grad=target.requires_grad)
        setattr(*self._slot, tensor)


def _load_by_handover(module: torch.nn.Module, entries: Any, strict: bool) -> modules.IncompatibleKeys:
    """Do what ``assign=True`` does, for a ``load_state_dict`` that does not have it."""
    with contextlib.ExitStack() as hooks:
        for each in module.modules():
            hooks.enter_context(modules.before_loading(each, _hand_over))
        return module.load_state_dict(entries, strict=strict)


def _hand_over(module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Put a handover in the place of each tensor that torch is about to copy into this module.

    This late, nobody else sees them: a module that takes its entries in a way of its own, and a hook, find tensors.
    """
    for name in modules.own_tensors(module):
        tensor = state_dict.get(prefix + name)
        if isinstance(tensor, torch.Tensor):
            state_dict[prefix + name] = _Handover(tensor, (module, name))


def _ties(module: torch.nn.Module) -> dict[torch.Tensor, list[Slot]]:
    """Return the parameters and buffers that are in several slots of a module, with those."""
    slots: dict[torch.Tensor, list[Slot]] = {}
    for owner in module.modules():
        for name, tensor in modules.own_tensors(owner).items():
            slots.setdefault(tensor, []).append((owner, name))
    return {tensor: places for tensor, places in slots.items() if len(places) > 1}


def _tie_again(before: torch.Tensor, slots: list[Slot]) -> None:
    """Make one of what came to slots that held one, where it is the same memory or nothing came."""
    came = [now for slot in slots if (now := getattr(*slot)) is not before]
    for slot in slots:
        now = getattr(*slot)
        equals = (tensor for tensor in came if now is before or modules.same_memory(now, tensor))
        if (same := next(equals, now)) is not now:
            setattr(*slot, same)
