"""What a loader of the model server does before its call comes: it succeeds, and changes nothing that the call sees."""

from __future__ import annotations

import threading

import sharing
import torch

from zerocopy.share.worker.warm_up import WarmUp


def test_warm_up_succeeds_and_leaves_the_process_as_it_was() -> None:
    warm_up = WarmUp()
    warm_up.load_and_publish()
    before = sharing.descriptors_of(), threading.active_count(), torch.load, torch.jit.load
    state = torch.random.get_rng_state()
    for _ in range(5):
        warm_up.load_and_publish()
    assert before == (sharing.descriptors_of(), threading.active_count(), torch.load, torch.jit.load)
    assert torch.equal(state, torch.random.get_rng_state())
    warm_up.run()
    assert sharing.descriptors_of() == before[0] - 1  # its checkpoint
