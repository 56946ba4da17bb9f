"""The public names, for type checkers and editors."""

from zerocopy.errors import CacheError as CacheError
from zerocopy.share.api import load as load
from zerocopy.share.api import status as status
from zerocopy.share.api import unload as unload
from zerocopy.share.call_options import options as options
from zerocopy.share.patches.patch_all import patch_all as patch_all
from zerocopy.share.patches.patch_all import unpatch_all as unpatch_all
