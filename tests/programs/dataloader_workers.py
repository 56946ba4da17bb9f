"""Datasets that load a checkpoint in the worker: forked, and spawned."""

import sys
from pathlib import Path

import torch
import witness  # noqa: F401
from digests import digest
from torch.utils.data import DataLoader, Dataset

place = Path(sys.argv[1])


class Features(Dataset):
    """Rows of a checkpoint that each worker opens when it is first asked for one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loaded = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        if self.loaded is None:
            self.loaded = torch.load(self.path)
        # A tensor of the file as it is, which goes to the parent by shared memory, and one made from it.
        return self.loaded["rows"][index], self.loaded["weights"] * index


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.save({"rows": list(torch.randn(12, 500)), "weights": torch.randn(40, 50)}, place / "features.pt")
    for method, batch_size in (("fork", 4), ("spawn", None)):
        loader = DataLoader(
            Features(place / "features.pt"),
            batch_size=batch_size,
            num_workers=2,
            multiprocessing_context=method,
        )
        batches = list(loader)
        print(method, batch_size, len(batches), digest(batches))
