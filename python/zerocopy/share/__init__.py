"""The model server: a result is computed once per machine, and rebuilt anywhere over shared storages.

``zerocopy.share.load(fn, *args)`` returns what ``fn(*args)`` returns. See its documentation.
``zerocopy.share.patch_all()`` has the loading functions of known libraries do so. Under
``zerocopy.share.resident("cuda")`` results lie on a GPU, in one copy for all processes.
"""

from zerocopy import _public_names

# On first use, because the server's own process runs without torch.
__all__, __getattr__, __dir__ = _public_names.on_first_use(
    __name__,
    {
        "client.api": "load shutdown status unload",
        "client.call_options": "options",
        "client.resident": "resident",
        "errors": "ServerError",
        "patches.patch_all": "patch_all unpatch_all",
    },
)
_public_names.import_beside_torch(__name__, __all__, "client.load_call")
