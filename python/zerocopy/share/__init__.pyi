"""The public names, for type checkers and editors."""

from zerocopy.share.client.api import load as load
from zerocopy.share.client.api import shutdown as shutdown
from zerocopy.share.client.api import status as status
from zerocopy.share.client.api import unload as unload
from zerocopy.share.client.call_options import options as options
from zerocopy.share.client.resident import resident as resident
from zerocopy.share.errors import ServerError as ServerError
from zerocopy.share.patches.patch_all import patch_all as patch_all
from zerocopy.share.patches.patch_all import unpatch_all as unpatch_all
