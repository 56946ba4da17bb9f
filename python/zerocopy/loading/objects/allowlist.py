"""The globals that the safe loader accepts: the running release's list, then the user's.

A global is a pair (module, name). It is looked up, never imported. If a global is on no list, the file is refused
before anything is built.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterable
from typing import Any

from zerocopy import _torch
from zerocopy._torch import safe_globals
from zerocopy.loading.objects import rebuild, user_globals
from zerocopy.loading.objects.global_names import BLOCKED_MODULES, Name, modern, printable

_MAX_LISTED = 5  # globals in the message of a refusal
_MAX_NAMES = 10_000  # globals in the error's attribute: a hostile file could fill memory


#: Begins the advice in a refusal.
TRUST = "If you trust the file:"


def _is_lacking(path: str) -> bool:
    module, _, name = path.rpartition(".")
    return not hasattr(importlib.import_module(module), name)


#: torch's functions that other releases write into files and this one lacks. Their checked versions need no original.
OF_OTHER_RELEASES = {
    path: rebuild.SAFE[path]
    for path in (
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_sparse_csr_tensor",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    )
    if _is_lacking(path)
}


def resolve(names: Iterable[Name]) -> dict[Name, Any]:
    """Return the object for each global of a file.

    Raises
    ------
    pickle.UnpicklingError
        Some globals are on no list. The message names the first five, and the attribute ``globals`` has all.
    """
    found, refused = look_up(names)
    if refused:
        raise _refusal(refused)
    return found


def look_up(names: Iterable[Name]) -> tuple[dict[Name, Any], list[Name]]:
    """Return the objects of globals that are on a list, and the globals that are on none."""
    names = list(dict.fromkeys(names))
    if not names:
        return {}, []
    by_user = dict(user_globals.entries())
    of_torch = (_torch.release_allow_list(), safe_globals.of_torch(), OF_OTHER_RELEASES)
    found: dict[Name, Any] = {}
    refused: list[Name] = []
    for name in names:
        pair = modern(name)
        if pair is None or pair[0] in BLOCKED_MODULES:
            refused.append(name)
        elif pair in by_user:
            found[name] = by_user[pair]
        # torch's lists are keyed by the joined path; a dot in the name would let another pair join to the same.
        elif "." not in pair[1] and (known := [listed for listed in of_torch if ".".join(pair) in listed]):
            found[name] = known[0][".".join(pair)]
        else:
            refused.append(name)
    if refused and safe_globals.import_awaited(".".join(pair) for pair in map(modern, refused) if pair):
        return look_up(names)
    return found, refused


def _refusal(refused: list[Name]) -> pickle.UnpicklingError:
    names = sorted(map(printable, refused[:_MAX_NAMES]))
    rest = f" and {len(refused) - _MAX_LISTED} more" if len(refused) > _MAX_LISTED else ""
    what = "a global" if len(refused) == 1 else f"{len(refused)} globals"
    modules = {safe_globals.awaited_import(".".join(pair)) for pair in map(modern, refused) if pair} - {None}
    imports = "".join(f"{module} must be imported to load them. " for module in modules)
    error = pickle.UnpicklingError(
        f"weights_only refuses {what} of this file: {', '.join(names[:_MAX_LISTED])}{rest}. {imports}"
        'Nothing was imported or run. "zerocopy scan FILE" lists all with their uses. '
        f"{TRUST} allow each with zerocopy.safe_globals([...]), or load it with weights_only=False, which lets it "
        'run any code. To load all else without trust, call zerocopy.load(FILE, unknown="stub").'
    )
    error.globals = names  # type: ignore[attr-defined]
    return error
