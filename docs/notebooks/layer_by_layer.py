# %% [markdown]
# # How do I run a model that is larger than my memory?
#
# Layer by layer: make one layer without memory, and give it the tensors of each layer in turn. The
# process needs the memory of one layer; the page cache keeps as much of the file as there is room.

# %%
import os
import resource
import subprocess
import sys

import torch
from torch import nn

import zerocopy

layers, width = (8, 512) if os.environ.get("SMALL") else (64, 1024)

# Written by another process: this one shall not have held the weights.
write = f"""
import torch
from torch import nn
torch.manual_seed(0)
layers = nn.ModuleList(nn.Linear({width}, {width}) for _ in range({layers}))
torch.save(nn.ModuleDict({{"layers": layers}}).state_dict(), "model.pt")
"""
subprocess.run([sys.executable, "-c", write], check=True)
size = os.path.getsize("model.pt")
print(f"{size / 1e6:.0f} MB in {layers} layers")

# %% [markdown]
# ## Less memory than the file has bytes
#
# This process may take half as much further address space as the file has. A mapping of the whole
# file would count too.

# %%
x = torch.ones(4, width)
nn.Linear(width, width)(x)  # starts torch's threads, whose stacks take address space too
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + max(size // 2, 64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

# %% [markdown]
# ## One layer at a time
#
# `get_tensor` maps the part of the file that has the tensor. `assign` makes the tensors parameters
# of the layer, whose earlier parameters are freed.

# %%


def private():
    """Return the private memory of this process in MB."""
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


@torch.no_grad()
def run(x):
    layer = nn.Linear(width, width, device="meta")
    most = before = private()
    with zerocopy.open("model.pt") as checkpoint:
        for number in range(layers):
            names = {name: f"layers.{number}.{name}" for name in ("weight", "bias")}
            zerocopy.assign(layer, {name: checkpoint.get_tensor(full) for name, full in names.items()})
            x = x + layer(x).tanh()
            most = max(most, private())
    print(f"private memory: {most - before:.1f} MB more at most")
    return x


print(f"norm of the result: {run(x).norm().item():.4f}")

# %% [markdown]
# Private memory does not grow with the model, because clean pages of the file belong to the page
# cache. When memory is short the kernel drops them, and reads them again from the disk: a model
# larger than the machine's memory runs at the speed of its disk.
#
# [The example](../../examples/README.md) compares this speed with a plain read of the file.
