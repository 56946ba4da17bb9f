"""Names of globals as a pickle writes them: pairs (module, name) of bytes, never joined, never imported."""

from __future__ import annotations

import _compat_pickle

from zerocopy.display import shown

Name = tuple[bytes, bytes]

#: Never allowed, as in torch, not even by the user.
BLOCKED_MODULES = frozenset({"sys", "os", "posix", "nt"})


def modern(name: Name) -> tuple[str, str] | None:
    """Return a name in Python 3's spelling (protocol 2 writes Python 2's); None if it is not text."""
    try:
        module, attribute = (part.decode("utf-8") for part in name)
    except UnicodeDecodeError:
        return None
    if (module, attribute) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[(module, attribute)]
    return _compat_pickle.IMPORT_MAPPING.get(module, module), attribute


def printable(name: Name) -> str:
    """Return a name as a message may show it: joined, escaped and cut."""
    return shown(b".".join(name).decode("utf-8", "backslashreplace"))
