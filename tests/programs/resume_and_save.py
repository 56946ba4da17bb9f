"""Resume from a checkpoint, train, save to the same path, and again; what was loaded stays in use."""

import sys
from pathlib import Path

import torch
import witness  # noqa: F401
from digests import digest

path = Path(sys.argv[1]) / "checkpoint.pt"


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 200)).square().mean().backward()
        optimizer.step()


def save(model, optimizer, epoch: int, **more) -> None:
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, **more}, path
    )


model, optimizer = make()
train(model, optimizer)
save(model, optimizer, 0)

kept = []
for epoch in range(1, 4):
    model, optimizer = make()
    checkpoint = torch.load(path)
    kept.append(checkpoint)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer)
    # With tensors of the file that is being replaced among those that are saved.
    save(model, optimizer, epoch, before=checkpoint["model"])
    print(checkpoint["epoch"], digest(model), digest(optimizer.state_dict()))

print([digest(checkpoint) for checkpoint in kept])
print(sorted(entry.name for entry in path.parent.iterdir()))
