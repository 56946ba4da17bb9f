"""Finds objects of unknown classes in values, and takes them out: ``unknown="stub"`` leaves them out of a target."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import torch

from zerocopy.lazy.placeholder import NotYetLoadedTensor
from zerocopy.lazy.placeholder_builder import TensorRecipe
from zerocopy.loading.objects.stubs import is_unknown
from zerocopy.saving.pickler import PROTOCOL

_PLAIN = (str, int, float, bool, bytes, type(None))
_STORAGES = (torch.storage.TypedStorage, torch.UntypedStorage)


class UnknownSearch:
    """Searches values for a :class:`~zerocopy.loading.objects.stubs.Stub` or ``UnknownGlobal`` anywhere in them.

    A target contains the pickle of each value. So the search pickles the value and drops the bytes. An object that
    occurs in several values is searched once.
    """

    def __init__(self) -> None:
        self._pickler = _SearchingPickler()

    def first_in(self, value: Any) -> Any:
        """Return the first unknown object that a value is or holds, or None."""
        if is_unknown(value):
            return value
        if type(value) in _PLAIN:
            return None
        try:
            self._pickler.dump(value)
        except _FoundUnknown as stop:
            found = stop.value
        except Exception:  # Writing the target will raise the same error.
            found = None
        else:
            return None
        self._pickler = _SearchingPickler()  # the memo has containers that were searched in part
        return found


class _FoundUnknown(BaseException):
    """Ends a search. It derives from ``BaseException`` so that code of the value does not catch it."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


class _Nowhere:
    """A file object that drops the bytes written to it."""

    def write(self, content: Any) -> int:
        return len(content)


class _SearchingPickler(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(_Nowhere(), PROTOCOL)

    def reducer_override(self, obj: Any) -> Any:
        if is_unknown(obj):
            raise _FoundUnknown(obj)
        if isinstance(obj, _STORAGES):
            return list, ()
        if isinstance(obj, torch.Tensor):  # its elements are not read
            return list, (_parts_of(obj),)
        return NotImplemented


def remove_unknown(whole: Any) -> list[str]:
    """Remove the unknown keys and attributes from an object that was built for a target, and return their names.

    These are entries of dicts whose keys are unknown, and attributes of tensors and of ``OrderedDict`` whose values
    are. Unknown values in dicts, lists and tuples are not looked for.
    """
    search = UnknownSearch()
    removed: list[str] = []
    seen = {id(whole)}
    found = [("", whole)]
    # The loop appends to the list: a file may nest deeper than Python calls.
    for name, value in found:
        inner = [(name, part) for part in _parts_of(value) if isinstance(part, torch.Tensor)]
        for attributes in [part for part in _parts_of(value) if type(part) is dict]:
            for key in [key for key, item in attributes.items() if search.first_in((key, item))]:
                del attributes[key]
                removed.append(f"{name}: attribute {key!r}" if name else f"attribute {key!r}")
        for key, item in _items_of(value):
            its_name = f"{name}.{key}" if name else str(key)
            if isinstance(value, dict) and search.first_in(key):
                del value[key]
                removed.append(its_name)
            elif _is_branch(item) or isinstance(item, torch.Tensor):
                inner.append((its_name, item))
        found += [each for each in inner if id(each[1]) not in seen]
        seen.update(id(item) for _, item in inner)
    return removed


def _is_branch(value: Any) -> bool:
    return type(value) in (dict, OrderedDict, list, tuple)


def _items_of(value: Any) -> list[tuple[Any, Any]]:
    if not _is_branch(value):
        return []
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def _parts_of(value: Any) -> list[Any]:
    """Return the attributes of a tensor or ``OrderedDict`` as dicts, and the tensors that a placeholder is made of."""
    if not isinstance(value, NotYetLoadedTensor):
        return [vars(value)] if isinstance(value, (torch.Tensor, OrderedDict)) else []
    recipe = value._recipe[1]
    if not isinstance(recipe, TensorRecipe):
        return []
    parts = [*recipe.attributes, *recipe.arguments]
    parts += [item for part in parts if isinstance(part, tuple) for item in part]
    return [part for part in parts if type(part) is dict or isinstance(part, torch.Tensor)]
