from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks

from zerocopy._torch import distributed


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Give what runs a program in several processes of one group."""
    if distributed.checkpoint_module() is None:
        pytest.skip("torch.distributed.checkpoint: PyTorch 2.2 or later")
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()
