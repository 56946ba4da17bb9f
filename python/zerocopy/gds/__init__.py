"""GPUDirect Storage: files to the memory of a GPU and back, past the host's, where the machine can do that.

``torch.cuda.gds`` moves the bytes. Every call works on every machine: where torch cannot use cuFile, files are read and
written plainly, on the way to a GPU through a little pinned memory, and :func:`available` says why.
"""

from zerocopy.gds.available import Availability, available
from zerocopy.gds.file import GdsFile, deregister_buffer, register_buffer
from zerocopy.gds.loading import load
from zerocopy.gds.saving import save

#: The names of ``torch.cuda.gds``.
gds_register_buffer = register_buffer
gds_deregister_buffer = deregister_buffer

__all__ = [
    "Availability",
    "GdsFile",
    "available",
    "deregister_buffer",
    "gds_deregister_buffer",
    "gds_register_buffer",
    "load",
    "register_buffer",
    "save",
]
