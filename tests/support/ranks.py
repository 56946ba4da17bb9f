"""Runs a function in several processes that form a gloo process group, forked from one that has imported torch."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from fork_server import ForkServer

# The same for each program: `main(rank, *arguments)` returns something that JSON can hold, or raises. `prepare(rank)`,
# if there is one, is called before the process group is made.
PRELUDE = """
import datetime, json, os, sys, traceback, warnings
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import zerocopy
from zerocopy.distributed import CheckpointReader, CheckpointWriter

try:
    from torch.distributed.tensor import Shard
except ImportError:  # public since 2.5
    import torch.distributed._tensor
    sys.modules["torch.distributed.tensor"] = torch.distributed._tensor

warnings.simplefilter("ignore")
torch.set_num_threads(1)

def failure(function, *arguments, **keywords):
    '''Return the kinds of the errors on the ranks that failed, and what dcp says of them.'''
    try:
        function(*arguments, **keywords)
    except BaseException as error:
        failures = getattr(error, "failures", None)
        if failures is None:
            return [type(error).__name__, str(error)]
        return [{rank: type(one[0]).__name__ for rank, one in failures.items()}, str(error)]
    return None

def counted(field):
    with open("/proc/self/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith(field)))

def rchar():
    '''Return the bytes that this process has read by system calls.'''
    return counted("rchar")

def written():
    '''Return the bytes that this process has written by system calls.'''
    return counted("wchar")
"""
LAUNCH = """
def launch():
    folder, ranks, seconds, *arguments = sys.argv[1:]
    children = []
    for rank in range(int(ranks)):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.environ.update(RANK=str(rank), WORLD_SIZE=ranks, LOCAL_RANK=str(rank))
                globals().get("prepare", lambda rank: None)(rank)
                timeout = datetime.timedelta(seconds=int(seconds))
                dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank,
                                        world_size=int(ranks), timeout=timeout)
                result = main(rank, *map(json.loads, arguments))
                with open(f"{folder}/result-{rank}", "w") as file:
                    json.dump(result, file)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(json.dumps(statuses))

launch()
"""


class Ranks:
    """Runs programs; one process forks for all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runs = folder, 0
        self._fork_server = ForkServer(folder, ["torch.distributed.checkpoint", "torch.distributed.tensor"])

    def run(
        self, program: str, ranks: int, *arguments: Any, killed: tuple[int, ...] = (), timeout: int = 30
    ) -> list[Any]:
        """Run `main` of a program in each rank and return the results; None of the ranks that are to be killed."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        folder.mkdir()
        code = PRELUDE + textwrap.dedent(program) + LAUNCH
        done = self._fork_server.run(code, folder, ranks, timeout, *map(json.dumps, arguments), timeout=300)
        assert done.returncode == 0, done.stderr
        for rank, status in enumerate(json.loads(done.stdout.splitlines()[-1])):
            assert (status != 0) == (rank in killed), done.stderr
        return [
            None if rank in killed else json.loads((folder / f"result-{rank}").read_text())
            for rank in range(ranks)
        ]

    def close(self) -> None:
        """End the process."""
        self._fork_server.close()
