"""The unpickler of :func:`zerocopy.lazy_load` for files that may run code (``weights_only=False``)."""

from __future__ import annotations

import pickle
from typing import Any

from zerocopy._native import _C
from zerocopy.lazy.placeholder_builder import Deferred, loaded, only_keeps, plain_state
from zerocopy.loading.readers.unpickler import StorageUnpicklerMixin

_PythonUnpickler: Any = pickle._Unpickler


class LazyUnpickler(StorageUnpicklerMixin, _PythonUnpickler):  # type: ignore[misc]
    """Puts placeholders where tensors would be, and hands real ones to the code of the file.

    That code may be C++, which keeps what it gets. Objects that take their attributes from a dict, as modules do, keep
    placeholders. Only the unpickler in Python lets its steps be overridden.
    """

    def __init__(self, file: Any, archive: _C.Archive, objects: Deferred, **pickle_args: Any) -> None:
        super().__init__(file, archive, **pickle_args)
        self._objects = objects

    def find_class(self, module: str, name: str) -> Any:
        """Return the global that a file names; for torch's tensor builders, a function that makes placeholders."""
        return self._objects.later(super().find_class(module, name), f"{module}.{name}")

    def _load_reduce(self) -> None:
        function, arguments = self.stack[-2:]
        if not hasattr(function, "rebuilds"):  # else it is what find_class has put there
            self.stack[-2:] = self._objects.made_at_once, (function, arguments)
        super().load_reduce()

    def _load_newobj(self) -> None:
        if not only_keeps(self.stack[-2]):
            self.stack[-1] = loaded(self.stack[-1])
        super().load_newobj()

    def _load_newobj_ex(self) -> None:
        self.stack[-2:] = loaded(self.stack[-2:])
        super().load_newobj_ex()

    def _load_append(self) -> None:
        value = self.stack.pop()
        self.stack[-1].extend([value])  # pickle's C implementation calls extend() too

    def _load_build(self) -> None:
        self.stack[-1] = plain_state(self.stack[-1])
        super().load_build()

    dispatch = _PythonUnpickler.dispatch | {
        pickle.REDUCE[0]: _load_reduce,
        pickle.NEWOBJ[0]: _load_newobj,
        pickle.NEWOBJ_EX[0]: _load_newobj_ex,
        pickle.APPEND[0]: _load_append,
        pickle.BUILD[0]: _load_build,
    }
