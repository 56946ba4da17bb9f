"""The server as a unit of systemd's user manager, for those who want it from log-in on: an option, it is not needed."""

from __future__ import annotations

import sys

_UNIT = """\
[Unit]
Description=zerocopy's model server

[Service]
# Not ended for want of requests: systemd would only start it again.
Environment=ZEROCOPY_SHARE_IDLE=inf
ExecStart={python} -m zerocopy serve
Restart=on-failure
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def unit() -> str:
    """Return the text of ``~/.config/systemd/user/zerocopy.service``, for this Python."""
    return _UNIT.format(python=sys.executable.replace("%", "%%"))
