"""``zerocopy plan``: what each rank of a job would read of a checkpoint."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zerocopy.cli import runner
from zerocopy.cli.output import escaped, say, say_json
from zerocopy.display import count, size, spread

if TYPE_CHECKING:
    from zerocopy.distributed.planning import ShardPlan
    from zerocopy.lazy.tensor_info import TensorInfo

DESCRIPTION = """
Lists the bytes of a checkpoint that each rank of a job would read with zerocopy.distributed, and in how many requests:
by rank, by host, and by storage server. Only the file's directory is read, so any machine can plan for any number of
ranks.
"""

ROWWISE = r"(o_proj|down_proj|out_proj|c_proj|wo|w2|fc2|dense_4h_to_h)\.weight$"

EPILOG = (
    runner.exit_codes(
        fine="planned",
        bad="(is not used)",
        trouble="the file cannot be read, or the command line makes no sense",
        several=runner.OF_SEVERAL,
    )
    + """
Tensor parallelism splits the first dimension of each tensor with two or more; the second where --rowwise matches its
name; and the only dimension of a bias whose weight has its first split. Everything else is whole on each of them. The
other ranks are data parallel: each has a part of the first dimension of every tensor (FSDP2), or all (--replicate).

example:
  $ zerocopy plan --ranks 1024 --tp 8 model.safetensors.index.json
"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="FILE", help="a checkpoint: a file, an index, a folder")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="how many ranks there are")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="ranks of tensor parallelism (1)")
    parser.add_argument("--replicate", action="store_true", help="plain data parallelism: no FSDP2")
    parser.add_argument(
        "--rowwise", default=ROWWISE, metavar="REGEX", help="names that split the second dimension"
    )
    parser.add_argument(
        "--ranks-per-host", type=int, default=8, metavar="N", help="ranks in a row on one host (8)"
    )
    parser.add_argument("--each", action="store_true", help="a line for every rank and host")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/distributed.md)")


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Plan, and return the exit code."""
    if min(options.ranks, options.tp, options.ranks_per_host) < 1 or options.ranks % options.tp:
        parser.error("numbers are at least 1, and --ranks is a multiple of --tp")
    try:
        rowwise = re.compile(options.rowwise)
    except re.error as error:
        parser.error(f"--rowwise: {error}")
    # They need torch, which --help does not.
    import torch

    from zerocopy.distributed.planning import shard_plan

    mesh = (options.ranks // options.tp, options.tp)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for many small sums, more threads only add waiting
    try:
        found = shard_plan(options.file, mesh, lambda info: placements(info, rowwise, options.replicate))
        if options.json:
            say_json(_as_json(found, options))
        else:
            say(_lines(found, options))
    finally:
        torch.set_num_threads(threads)
    return runner.FINE


def placements(info: TensorInfo, rowwise: re.Pattern[str], replicate: bool) -> tuple[int | None, int | None]:
    """Return which dimension of a tensor is split over data parallel ranks, and over tensor parallel ones."""
    dims = len(info.shape)
    data = None if replicate or not dims else 0
    if rowwise.search(info.name) and dims >= 2:
        return data, 1
    is_bias = dims == 1 and info.name.endswith(".bias")
    follows_rows = is_bias and not rowwise.search(info.name.removesuffix("bias") + "weight")
    is_norm = "norm" in info.name or re.search(r"\bln_", info.name) is not None
    return data, 0 if dims >= 2 or (follows_rows and not is_norm) else None


def _as_json(found: ShardPlan, options: argparse.Namespace) -> dict[str, Any]:
    return {
        **runner.head("plan"),
        "path": options.file,
        "bytes": found.file_bytes,
        "ranks": [rank._asdict() for rank in found.ranks],
        "hosts": [host._asdict() for host in found.hosts(options.ranks_per_host)],
    }


def _lines(found: ShardPlan, options: argparse.Namespace) -> Iterator[str]:
    hosts = found.hosts(options.ranks_per_host)
    ranks = found.ranks
    yield f"{escaped(options.file)}: {size(found.file_bytes)} of tensors"
    read = sum(rank.bytes_read for rank in ranks)
    yield (
        f"{count(len(ranks), 'rank')}: each reads {spread([rank.bytes_read for rank in ranks], size)} in "
        f"{spread([rank.requests for rank in ranks], str)} requests; {size(read)} together, "
        f"{size(len(ranks) * found.file_bytes)} if each read all"
    )
    yield (
        f"{count(len(hosts), 'host')}: each reads {spread([host.bytes_read for host in hosts], size)}, of which "
        f"{spread([host.bytes_once for host in hosts], size)} for the first time"
    )
    if options.each:
        yield from (f"  rank {n}: {size(read)} in {requests} requests" for n, _, read, requests in ranks)
        for host in hosts:
            once = size(host.bytes_once)
            yield f"  host {host.host}: {size(host.bytes_read)} in {host.requests} requests, {once} once"
