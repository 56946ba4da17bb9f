"""Resolves a device argument."""

from __future__ import annotations

import torch

from zerocopy.errors import UnsupportedError


def device_of(device: str | int | torch.device) -> torch.device:
    """Return the device that is meant; "auto" is the GPU where there is one, else the CPU.

    Raises
    ------
    zerocopy.UnsupportedError
        The device is missing. The exception is a RuntimeError, like torch's.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"{found}: torch.cuda.is_available() is False. device='cpu' loads without a GPU; device='auto' does so "
            "if the machine lacks one"
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"cuda:{index} does not exist: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda", index)
