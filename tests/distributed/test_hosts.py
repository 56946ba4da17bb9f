"""Jobs on two hosts: network namespaces with names of their own, joined by a link whose bytes are counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks

import zerocopy
from zerocopy.distributed import shard_plan

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
    pytest.skip("one release is enough", allow_module_level=True)

pytestmark = pytest.mark.slow("network namespaces")

ENTER = """
    def prepare(rank):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        new_network, new_names = 0x40000000, 0x04000000
        host = rank // 2
        namespace = os.open(f"/run/netns/{HOSTS[host]}", os.O_RDONLY)
        name = f"host{host}".encode()
        done = (libc.setns(namespace, new_network), libc.unshare(new_names), libc.sethostname(name, len(name)))
        assert done == (0, 0, 0), os.strerror(ctypes.get_errno())
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"

    def sent():
        with open("/proc/self/net/dev") as file:
            fields = next(line for line in file if "eth0:" in line).split()
        return int(fields[9])

    def main(rank, path, target):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        class Counting(CheckpointReader):
            def read_data(self, plan, planner):
                before = rchar()
                done = super().read_data(plan, planner)
                self.nbytes = rchar() - before
                return done

        class CountingWriter(CheckpointWriter):
            def write_data(self, plan, planner):
                before = written()
                done = super().write_data(plan, planner)
                self.nbytes = written() - before
                return done

        mesh = init_device_mesh("cpu", (4,))
        full = zerocopy.load(path)
        found = {}
        for broadcast in ("off", "host", "job", "auto", "shards"):
            placements = [Shard(0) if broadcast == "shards" else Replicate()]
            state = {name: distribute_tensor(torch.zeros_like(tensor), mesh, placements, src_data_rank=None)
                     for name, tensor in full.items()}
            reader = Counting(path, broadcast="auto" if broadcast == "shards" else broadcast)
            dist.barrier()
            before = sent()
            dcp.load(state, storage_reader=reader)
            dist.barrier()
            found[broadcast] = reader.nbytes, sent() - before
            for name, tensor in full.items():
                own = tensor.chunk(4)[rank] if broadcast == "shards" else tensor
                assert torch.equal(state[name].to_local(), own), (broadcast, name)
        writer = CountingWriter(target, max_shard_size="4MiB")
        dist.barrier()
        before = sent()
        dcp.save(state, storage_writer=writer)
        dist.barrier()
        found["save"] = writer.nbytes, sent() - before
        return found
"""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Make two network namespaces, whose interfaces eth0 are the two ends of one link."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"zerocopy-{os.getpid()}-{host}" for host in range(2)]
    made = []

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this system makes no network namespaces: {done.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        peer = ["peer", "name", "eth0", "netns", names[1]]
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", *peer)
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.213.7.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def test_ranks_of_two_hosts_read_write_and_send_what_the_plan_says(
    ranks: Ranks, tmp_path: Path, hosts: list[str]
) -> None:
    path = tmp_path / "model.pt"
    torch.save({f"layer{i}": torch.randn(64, 8192) for i in range(8)}, path)
    counted = ranks.run(f"    HOSTS = {hosts}\n{ENTER}", 4, str(path), str(tmp_path / "saved"), timeout=60)

    def read(case: str) -> list[int]:
        return [found[case][0] for found in counted]

    def crossed(case: str) -> int:
        """Return the bytes that both hosts sent; the two ranks of a host see the same link."""
        return sum(max(found[case][1] for found in counted[first : first + 2]) for first in (0, 2))

    whole: list[Any] = shard_plan(path, (4,), (None,)).ranks
    split: list[Any] = shard_plan(path, (4,), (0,)).ranks
    size = whole[0].bytes_read
    for case, planned in (("off", whole), ("auto", whole), ("shards", split)):
        for rank, nbytes in enumerate(read(case)):
            assert nbytes == pytest.approx(planned[rank].bytes_read, rel=0.01), case
        assert crossed(case) < 0.02 * size
    host, job = read("host"), read("job")
    assert [sum(host[:2]), sum(host[2:])] == pytest.approx([size, size], rel=0.01)
    assert crossed("host") < 0.02 * size
    assert sum(job) == pytest.approx(size, rel=0.01)
    assert crossed("job") > 0.9 * size
    assert read("save") == pytest.approx([size / 4] * 4, rel=0.01)
    assert crossed("save") < 0.02 * size
    found = zerocopy.load(tmp_path / "saved")
    assert all(torch.equal(found[name], tensor) for name, tensor in torch.load(path).items())
