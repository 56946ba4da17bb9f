"""GPUDirect Storage: files to the memory of a GPU and back, past the host's, where the machine can do that.

Every call works on every machine. Where cuFile is not there, or refuses, files are read and written plainly, on the way
to a GPU through a little pinned memory, and :func:`available` says why.
"""

from zerocopy.gds.availability import Availability, available
from zerocopy.gds.buffers import deregister_buffer, register_buffer
from zerocopy.gds.file import GdsFile
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
