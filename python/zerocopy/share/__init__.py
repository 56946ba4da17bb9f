"""Results shared between processes: a call is computed once per machine, and rebuilt anywhere over mapped files.

``zerocopy.share.load(fn, *args)`` returns what ``fn(*args)`` returns. See its documentation.
``zerocopy.share.patch_all()`` has the loading functions of known libraries do so.
"""

from zerocopy import _public_names

# On first use: listing what is kept takes no torch.
__all__, __getattr__, __dir__ = _public_names.on_first_use(
    __name__,
    {
        "api": "CacheError load status unload",
        "call_options": "options",
        "patches.patch_all": "patch_all unpatch_all",
    },
)
_public_names.import_beside_torch(__name__, __all__, "loading")
