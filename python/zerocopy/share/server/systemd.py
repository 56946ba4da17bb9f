"""The server as a unit of systemd's user manager, for those who want it from log-in on: an option, it is not needed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

_UNIT = """\
[Unit]
Description=zerocopy's model server

[Service]
Environment={environment}
ExecStart={command}
Restart=on-failure
UMask=0077
NoNewPrivileges=yes
# A few descriptors for each model.
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""


def unit(environment: Mapping[str, str]) -> str:
    """Return the text of ``~/.config/systemd/user/zerocopy.service``, for this Python and with these variables."""
    # Not ended for want of requests, unless that is asked for: systemd would only start it again.
    values = {"ZEROCOPY_SHARE_IDLE": "inf", **environment}
    text = " ".join(_quoted(f"{name}={value}") for name, value in sorted(values.items()))
    command = shlex.join([sys.executable, "-m", "zerocopy", "serve"])
    return _UNIT.format(environment=text.replace("%", "%%"), command=command.replace("%", "%%"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
