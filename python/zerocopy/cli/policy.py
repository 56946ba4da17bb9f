"""Decides which globals of a file the safe loader allows, mostly without importing torch.

torch takes a second to import, and all that is wanted of it is a list of names. So the weights_only lists of the
releases that zerocopy is tested with are kept here (a test holds them against those releases). On any other release
torch is imported and asked, and only for a file that names what zerocopy does not build itself.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import NamedTuple

from zerocopy import environment
from zerocopy.loading.objects.global_names import BLOCKED_MODULES, Name, modern

_ELEMENTS = ("BFloat16", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_PLACES = ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")

# Globals that zerocopy builds itself are allowed everywhere. Only their names in Python 2's modules are listed here.
_EVERYWHERE = frozenset(
    {
        *(f"{place}.{element}Tensor" for place in _PLACES for element in _ELEMENTS),
        "collections.OrderedDict",
        "torch.BoolTensor",
        "torch.cuda.BoolTensor",
        "torch.Tensor",
        "torch.storage.TypedStorage",
        "torch.serialization._get_layout",
        "torch._utils._rebuild_meta_tensor_no_storage",
        "torch._utils._rebuild_sparse_tensor",
        # other releases write these, and zerocopy takes them wherever it runs
        "torch._utils._rebuild_sparse_csr_tensor",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    }
)

_JAGGED = "torch.nested._internal.nested_tensor"
_JAGGED_ATTRIBUTES = frozenset({b"_values", b"_offsets", b"_lengths", b"_ragged_idx", b"_metadata_cache"})

#: Full paths that a file may name, by minor release.
LISTS = {
    "1.13": _EVERYWHERE,
    "2.13": _EVERYWHERE
    | {
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.set",
        "collections.Counter",
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_device_tensor_from_numpy",
        "torch._utils._rebuild_nested_tensor",
        "torch._utils._rebuild_qtensor",
        "torch._utils._rebuild_wrapper_subclass",
        f"{_JAGGED}.NestedTensor",
        f"{_JAGGED}._rebuild_njt",
        "torch.per_channel_affine",
        "torch.per_channel_affine_float_qparams",
        "torch.per_channel_symmetric",
        "torch.per_tensor_affine",
        "torch.per_tensor_symmetric",
        *(f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    },
}

LISTS["2.14"] = LISTS["2.13"]
LISTS["2.15"] = LISTS["2.14"] - {
    "torch._utils._rebuild_nested_tensor",
    f"{_JAGGED}.NestedTensor",
    f"{_JAGGED}._rebuild_njt",
}

#: Functions, among those paths and among those that zerocopy builds itself, that a file may call.
FUNCTIONS = frozenset(
    {
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
        "torch._utils._rebuild_device_tensor_from_numpy",
        "torch._utils._rebuild_meta_tensor_no_storage",
        "torch._utils._rebuild_nested_tensor",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_qtensor",
        "torch._utils._rebuild_sparse_csr_tensor",
        "torch._utils._rebuild_sparse_tensor",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_wrapper_subclass",
        "torch.serialization._get_layout",
        f"{_JAGGED}._rebuild_njt",
    }
)

# Modules whose functions run code or commands. The list only marks globals that a reader should look at first: such a
# list is never complete, so no verdict depends on it.
_RUNNERS = frozenset(
    [
        *("os", "posix", "nt", "sys", "subprocess", "pty", "runpy", "importlib", "ctypes", "socket"),
        *("shutil", "code", "codeop", "pdb", "bdb", "timeit", "cProfile", "profile", "trace", "pip"),
        *("pickle", "_pickle", "marshal", "multiprocessing", "asyncio", "pydoc", "pkgutil", "operator"),
        *("functools", "webbrowser"),
    ]
)
_RUNNING_BUILTINS = frozenset(
    {"eval", "exec", "compile", "execfile", "__import__", "getattr", "open", "apply"}
)


class Policy(NamedTuple):
    """The globals that a file may name on one release of PyTorch."""

    release: str
    allowed: frozenset[str]

    def allows(self, name: Name) -> bool:
        """Return whether a file may name a global that zerocopy does not build itself."""
        pair = modern(name)
        # The lists hold joined paths; a dot in the name would let another pair join to the same.
        return (
            pair is not None
            and pair[0] not in BLOCKED_MODULES
            and "." not in pair[1]
            and ".".join(pair) in self.allowed
        )


def may_be_called(name: Name) -> bool:
    """Return whether a file may call a global that it may name."""
    pair = modern(name)
    return pair is not None and ".".join(pair) in FUNCTIONS


def may_be_set(target: Name, attribute: bytes) -> bool:
    """Return whether a file may give an object of a class an attribute. The class is one that the file may name."""
    name = attribute.decode("utf-8", "surrogatepass")
    if target == (b"collections", b"OrderedDict"):  # state_dict's _metadata: nearly every file has it
        return not name.startswith("__") and not hasattr(OrderedDict, name)

    if target == (_JAGGED.encode(), b"NestedTensor") and attribute in _JAGGED_ATTRIBUTES:
        return True  # the call that made the tensor has set it already; a load refuses other values

    from zerocopy.loading.objects import (  # only torch's classes know what their attributes mean
        allowlist,
        builder,
        user_globals,
    )

    if running().allows(target):
        cls = allowlist.resolve([target])[target]
    else:
        cls = builder.native_global(*(part.decode() for part in target))
    return isinstance(cls, type) and user_globals.may_be_set(cls, name)


def runs_code(name: Name) -> bool:
    """Return whether a global is known to run code or commands, or to lead to a global that does."""
    pair = modern(name)
    if pair is None:
        return False
    module, attribute = pair
    return module.partition(".")[0] in _RUNNERS or (module == "builtins" and attribute in _RUNNING_BUILTINS)


def releases(name: Name) -> list[str]:
    """Return the releases, among those of :data:`LISTS`, that let a file name a global."""
    return [release for release, allowed in LISTS.items() if Policy(release, allowed).allows(name)]


@functools.cache
def running() -> Policy:
    """Return the policy of the installed release, or of the latest known release if torch is not installed."""
    version = environment.torch_version()
    minor = ".".join(version.split(".")[:2]) or max(
        LISTS, key=lambda release: tuple(map(int, release.split(".")))
    )
    if minor in LISTS:
        return Policy(minor, LISTS[minor])

    from zerocopy import _torch
    from zerocopy._torch import safe_globals
    from zerocopy.loading.objects import allowlist

    return Policy(
        minor,
        frozenset(_torch.release_allow_list())
        | allowlist.OF_OTHER_RELEASES.keys()
        | safe_globals.of_torch().keys(),
    )
