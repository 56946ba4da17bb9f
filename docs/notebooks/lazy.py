# %% [markdown]
# # How do I load a checkpoint into a module lazily?
#
# Open the file instead of loading it: names, shapes and dtypes are there at once, and bytes are
# read for the tensors that you use. Then give the module the file, and its parameters lie there.

# %%
import os

import torch
from torch import nn

import zerocopy

width = 64 if os.environ.get("SMALL") else 2048


def make(device="cpu"):
    up, down = (nn.Linear(width, width, device=device) for _ in range(2))
    return nn.Sequential(up, nn.ReLU(), down)


torch.manual_seed(0)
original = make()
torch.save(original.state_dict(), "model.pt")
print(f"{os.path.getsize('model.pt') / 1e6:.1f} MB")

# %% [markdown]
# ## Look without reading
#
# A notebook shows a checkpoint as a table. No tensor has been read for it.

# %%
checkpoint = zerocopy.open("model.pt")
checkpoint

# %% [markdown]
# Each value is a placeholder: a tensor that knows its shape, and loads itself when it is used.

# %%
weight = checkpoint["0.weight"]
print(weight.shape, weight.dtype, "loaded:", weight.is_loaded)
print("sum of the first row:", round(weight[0].sum().item(), 4), "loaded:", weight.is_loaded)
print("norm:", round(weight.norm().item(), 2), "loaded:", weight.is_loaded)

# %% [markdown]
# The first use maps the tensor. Of its bytes the system reads the pages that are touched: those of
# the first row, then all of them for the norm.
#
# ## A module without memory
#
# A module on the meta device has no memory and no random numbers. `load_model` makes the tensors of
# the file its parameters.

# %%
model = make(device="meta")
zerocopy.load_model(model, "model.pt")
x = torch.ones(1, width)
print("the same output:", torch.equal(model(x), original(x)))

# %%
zerocopy.memory()

# %% [markdown]
# The weights count as mapped and not as private. A write to a parameter makes its page private:

# %%
with torch.no_grad():
    model[0].bias.zero_()
print(zerocopy.memory().files[0].private, "bytes are private")
print("the file has not changed:", torch.equal(zerocopy.load("model.pt")["0.bias"], original[0].bias))

# %% [markdown]
# ## Part of a checkpoint
#
# [The guide](../lazy.md) has the other ways: names, slices, many parts in one read.

# %%
names = list(zerocopy.lazy_load("model.pt", prefix="2."))
rows = checkpoint.get_slice("2.weight")[10:12]
print(names, tuple(rows.shape))
