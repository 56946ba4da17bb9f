"""Pause Python's garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import os

from zerocopy import _core

#: Used as ``with COLLECTOR_PAUSED:``. The collector does not start within the block: each run would walk through all
#: of torch's objects. Threads may be in the block at the same time. A collector that was off before the first of them
#: stays off.
COLLECTOR_PAUSED = _core.CollectorPause()

# A child does not have the threads that were in the block.
os.register_at_fork(after_in_child=COLLECTOR_PAUSED.leave_all)
