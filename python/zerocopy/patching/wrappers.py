"""Functions that a program put in place of torch's before the patch, such as wrappers that set ``weights_only``.

A wrapper stays in the chain: the patched function calls it, and it calls zerocopy's in place of torch's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from zerocopy.process import replacements

Function = Callable[..., Any]


def is_original(value: Any, names: set[tuple[str, str]]) -> bool:
    """Return whether a value is a library's own function. `names` has its module and its name."""
    function = replacements.original(value)
    return isinstance(function, FunctionType) and (
        (function.__globals__.get("__name__"), function.__name__) in names
    )


def globals_of(wrapper: Any) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield the module, the name and the value of each global that a wrapper's code names."""
    if isinstance(wrapper, FunctionType):
        module = sys.modules.get(wrapper.__globals__.get("__name__", ""))
        if module is not None and vars(module) is wrapper.__globals__:
            for name in wrapper.__code__.co_names:
                yield module, name, vars(module).get(name)


def over(wrapper: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a copy of a wrapper, with `replaced(value)` in place of each value that it holds."""
    if isinstance(wrapper, functools.partial):
        return functools.partial(replaced(wrapper.func), *wrapper.args, **wrapper.keywords)
    if not isinstance(wrapper, FunctionType):
        return wrapper
    cells = tuple(_cell(cell, replaced) for cell in wrapper.__closure__ or ())
    defaults = wrapper.__defaults__ and tuple(map(replaced, wrapper.__defaults__))
    copy = FunctionType(wrapper.__code__, wrapper.__globals__, wrapper.__name__, defaults, cells)
    copy.__kwdefaults__ = {name: replaced(value) for name, value in (wrapper.__kwdefaults__ or {}).items()}
    return functools.update_wrapper(copy, wrapper)


def _cell(cell: CellType, replaced: Callable[[Any], Any]) -> CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return cell
    found = replaced(value)
    return cell if found is value else CellType(found)
