"""Return whether these tests run under a sanitizer: what scripts/sanitized tells them."""

from __future__ import annotations

import os

#: The sanitizers that the extension was built with, such as ``"address,undefined"``; empty as a rule.
#:
#: AddressSanitizer takes terabytes of address space before the first line of Python: a limit of it
#: (``RLIMIT_AS``) has to be counted from what a process has, or left out. Memory that is freed stays taken for
#: a while, and everything is two to four times slower: no limit of either is to be meant narrowly.
SANITIZED = os.environ.get("ZEROCOPY_SANITIZED", "")
