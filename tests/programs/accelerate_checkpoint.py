"""Big-model loading: into a model without memory, whole, sharded, and partly left on disk."""

import sys
from pathlib import Path

import torch
import witness  # noqa: F401
from accelerate import init_empty_weights, load_checkpoint_and_dispatch, load_checkpoint_in_model
from digests import digest
from huggingface_hub import save_torch_state_dict
from torch import nn

place = Path(sys.argv[1])


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.BatchNorm1d(128), nn.Linear(128, 64))


torch.manual_seed(0)
example = torch.randn(5, 64)
state = make().state_dict()
for name, largest in (("whole", "1GB"), ("sharded", "40KB")):
    (place / name).mkdir()
    save_torch_state_dict(state, place / name, max_shard_size=largest, safe_serialization=False)

for checkpoint in (place / "whole/pytorch_model.bin", place / "sharded", place / "whole"):
    model = make()
    load_checkpoint_in_model(model, str(checkpoint), strict=True)
    print(checkpoint.name, digest(model), digest(model.eval()(example)))

with init_empty_weights():
    model = make()
model = load_checkpoint_and_dispatch(model, place / "sharded", device_map={"": "cpu"})
print("dispatched", digest(model), digest(model.eval()(example)))

with init_empty_weights():
    model = make()
device_map = {"0": "cpu", "1": "cpu", "2": "cpu", "3": "disk"}
model = load_checkpoint_and_dispatch(model, place / "sharded", device_map, offload_folder=place / "disk")
print("from disk", digest(model.eval()(example)))
