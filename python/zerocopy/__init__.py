"""zerocopy: PyTorch checkpoints, ready in a millisecond, sharing one mapping of the file.

``zerocopy.load(path)`` returns what ``torch.load`` returns; see its documentation. Importing this package changes
nothing in torch or anywhere else.
"""

from zerocopy import _interpreters, _public_names
from zerocopy._version import __version__ as __version__

_interpreters.require_main()
_interpreters.require_lock()

# The public names of each module; ``__init__.pyi`` has them for type checkers. Submodules belong to the package itself.
__all__, __getattr__, __dir__ = _public_names.on_first_use(
    __name__,
    {
        "": "aoti distributed export gds integrations jit numpy share",
        "converting.converter": "convert",
        "errors": "ClosedError Error FormatError UnsupportedError",
        "lazy.assign": "assign load_model",
        "lazy.checkpoint": "Checkpoint",
        "lazy.tensor_info": "TensorInfo",
        "lazy.lazy_load": "lazy_load",
        "lazy.opening": "open overlay",
        "lazy.placeholder": "NotYetLoadedTensor",
        "lazy.prefetch": "Prefetch prefetch",
        "lazy.release": "release",
        "loading.explain": "Explanation explain",
        "loading.loader": "load",
        "loading.memory_report": "FileMemory MemoryReport memory",
        "loading.objects.stubs": "Stub UnknownGlobal",
        "loading.objects.user_globals": "safe_globals",
        "loading.readers.unpickler": "Unpickler",
        "loading.untyped_storage": "untyped_storage",
        "patching": "is_patched patch patched unpatch",
        "saving.handle": "Saving",
        "saving.pickler": "StoredTensor",
        "saving.saver": "save",
        "saving.skip_data": "Extent skip_data storage_offsets",
        "saving.writer": "Writer",
    },
)
_public_names.import_beside_torch(__name__, ["load"])  # all names would take a tenth of a second
