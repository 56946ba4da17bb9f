"""The public names, for type checkers and editors."""

from zerocopy import aoti as aoti
from zerocopy import distributed as distributed
from zerocopy import export as export
from zerocopy import gds as gds
from zerocopy import integrations as integrations
from zerocopy import jit as jit
from zerocopy import numpy as numpy
from zerocopy import share as share
from zerocopy._version import __version__ as __version__
from zerocopy.converting.converter import convert as convert
from zerocopy.errors import (
    ClosedError as ClosedError,
)
from zerocopy.errors import (
    Error as Error,
)
from zerocopy.errors import (
    FormatError as FormatError,
)
from zerocopy.errors import (
    UnsupportedError as UnsupportedError,
)
from zerocopy.lazy.assign import assign as assign
from zerocopy.lazy.assign import load_model as load_model
from zerocopy.lazy.checkpoint import Checkpoint as Checkpoint
from zerocopy.lazy.lazy_load import lazy_load as lazy_load
from zerocopy.lazy.opening import open as open
from zerocopy.lazy.opening import overlay as overlay
from zerocopy.lazy.placeholder import NotYetLoadedTensor as NotYetLoadedTensor
from zerocopy.lazy.prefetch import Prefetch as Prefetch
from zerocopy.lazy.prefetch import prefetch as prefetch
from zerocopy.lazy.release import release as release
from zerocopy.lazy.tensor_info import TensorInfo as TensorInfo
from zerocopy.loading.explain import Explanation as Explanation
from zerocopy.loading.explain import explain as explain
from zerocopy.loading.loader import load as load
from zerocopy.loading.memory_report import (
    FileMemory as FileMemory,
)
from zerocopy.loading.memory_report import (
    MemoryReport as MemoryReport,
)
from zerocopy.loading.memory_report import (
    memory as memory,
)
from zerocopy.loading.objects.stubs import Stub as Stub
from zerocopy.loading.objects.stubs import UnknownGlobal as UnknownGlobal
from zerocopy.loading.objects.user_globals import safe_globals as safe_globals
from zerocopy.loading.readers.unpickler import Unpickler as Unpickler
from zerocopy.loading.untyped_storage import untyped_storage as untyped_storage
from zerocopy.patching import is_patched as is_patched
from zerocopy.patching import patch as patch
from zerocopy.patching import patched as patched
from zerocopy.patching import unpatch as unpatch
from zerocopy.saving.handle import Saving as Saving
from zerocopy.saving.pickler import StoredTensor as StoredTensor
from zerocopy.saving.saver import save as save
from zerocopy.saving.skip_data import (
    Extent as Extent,
)
from zerocopy.saving.skip_data import (
    skip_data as skip_data,
)
from zerocopy.saving.skip_data import (
    storage_offsets as storage_offsets,
)
from zerocopy.saving.writer import Writer as Writer
