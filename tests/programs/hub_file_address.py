"""torch.hub.load_state_dict_from_url on a file: address, fetched once and then found."""

import hashlib
import sys
from pathlib import Path

import torch
import witness  # noqa: F401
from digests import digest

place = Path(sys.argv[1]).resolve()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
torch.save(model.state_dict(), place / "weights.pth")
beginning = hashlib.sha256((place / "weights.pth").read_bytes()).hexdigest()[:8]
published = (place / "weights.pth").rename(place / f"weights-{beginning}.pth")

for _ in range(2):
    state = torch.hub.load_state_dict_from_url(
        published.as_uri(), model_dir=place / "cache", progress=False, check_hash=True, map_location="cpu"
    )
    print(digest(state))
model.load_state_dict(state)
print(digest(model.eval()(torch.ones(1, 3, 9, 9))))
