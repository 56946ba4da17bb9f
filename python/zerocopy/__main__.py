"""The command ``zerocopy``, also as ``python -m zerocopy``."""

from __future__ import annotations

import sys

from zerocopy.cli import main

if __name__ == "__main__":
    sys.exit(main())
