"""Starts a program warm again and again, and kills its parts at random moments: a long check, which CI does not run.

    .venv-torch2/bin/python tests/launch/many_starts.py [STARTS] [KILLS]

It prints the fork server's descriptors and memory now and then, and fails if a process is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from warm_starts import WARM, Place

PROGRAM = "import os, torch; print(os.getpid(), torch.ones(2).sum().item(), flush=True)"


def state(server: dict[str, Any]) -> str:
    """Return the descriptors, kilobytes and children of a fork server."""
    pid = server["pid"]
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private"))
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return f"{descriptors} descriptors, {private} kB private, {len(children)} children"


def start_often(place: Place, count: int) -> None:
    """Start the program often, and print what its fork server has then."""
    for number in range(count + 1):
        if number % (count // 5 or 1) == 0:
            time.sleep(0.3)  # the last connections are closed after their programs have ended
            [server] = [found for found in place.servers() if found["starts"] or number == 0]
            print(f"{number} starts: {state(server)}", flush=True)
        done = place.run(WARM, PROGRAM) if number % 100 == 0 else started(place).communicate(timeout=180)[0]
        text = done if isinstance(done, str) else done.stdout
        assert text.endswith(" 2.0\n"), text


def started(place: Place) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*WARM, "program.py"],
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_parts(place: Place, count: int) -> None:
    """Kill the client, the program or the fork server at a random moment, and look at how the others end."""
    seen: dict[str, int] = {}
    for _ in range(count):
        victim = random.choice(("client", "program", "server"))
        client = started(place)
        time.sleep(random.uniform(0, 0.3))
        pids: dict[str, list[int]] = {"client": [client.pid]}
        for server in place.servers():
            pids |= {"server": [server["pid"]], "program": server["running"]}
        try:
            os.kill(pids[victim][0], signal.SIGKILL)
        except (LookupError, ProcessLookupError):
            victim = "nobody"
        output, errors = client.communicate(timeout=180)
        ended_well = client.returncode == 0 and output.endswith(" 2.0\n")
        expected = client.returncode == -signal.SIGKILL or ended_well
        assert expected, (victim, client.returncode, output, errors)
        if victim == "server" and client.returncode:
            assert "fork server" in errors, errors
        outcome = f"{victim} killed: {'ran' if ended_well else 'killed'}"
        seen[outcome] = seen.get(outcome, 0) + 1
        place.prepare(
            PROGRAM
        )  # where the fork server was killed after its program had run, nobody has started another
    print(*(f"{outcome}: {times}" for outcome, times in sorted(seen.items())), sep="\n")


def left_behind(place: Place) -> list[str]:
    """Return the processes that belong to this folder's warm starts, and are not fork servers."""
    servers = {found["pid"] for found in place.servers()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes()
            status = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        is_zombie_of_a_server = status[0] == "Z" and int(status[1]) in servers
        is_ours = os.fsencode(place.runtime) in variables and int(folder.name) not in servers
        if is_ours or is_zombie_of_a_server:
            found.append(f"{folder.name} {status[0]}")
    return found


def main() -> None:
    """Do both, and fail if something is left behind."""
    starts, kills = (int(word) for word in [*sys.argv[1:], "1000", "100"][:2])
    with tempfile.TemporaryDirectory() as folder, Place(Path(folder)) as place:
        place.prepare(PROGRAM)
        start_often(place, starts)
        kill_parts(place, kills)
        time.sleep(1)
        assert not left_behind(place), left_behind(place)
        print("nothing was left behind")


if __name__ == "__main__":
    main()
