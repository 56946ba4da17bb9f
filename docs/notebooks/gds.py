# %% [markdown]
# # What does GPUDirect Storage do on a machine without a GPU?
#
# The same calls work with plain reads and writes, and say so. This page was made on a machine
# without a GPU, so it shows the interface and the files, not the speed. [gpu.md](../gpu.md) says
# what was never run on a GPU.

# %%
import os

import torch

import zerocopy

available = zerocopy.gds.available()
print("direct path:", available.ok, "| mode:", available.mode)
print(available.reason)

# %% [markdown]
# ## Save and load
#
# `gds.save` writes a file that `torch.load` reads. Its storages begin at multiples of 4096 bytes, as
# cuFile wants them. With a GPU, pass `device="cuda"`.

# %%
width = 64 if os.environ.get("SMALL") else 1024
state = {"weight": torch.randn(width, width), "bias": torch.randn(width)}
zerocopy.gds.save(state, "model.pt")
print({name: extent.offset % 4096 for name, extent in zerocopy.storage_offsets("model.pt").items()})
loaded = zerocopy.gds.load("model.pt", device="cpu")
print("the same values:", all(torch.equal(loaded[name], state[name]) for name in state))
print("also by torch.load:", torch.equal(torch.load("model.pt")["weight"], state["weight"]))

# %% [markdown]
# ## Storages one by one
#
# `GdsFile` has the names of `torch.cuda.gds`, on every release of PyTorch. Before 2.0,
# `tensor.storage()` takes the place of `tensor.untyped_storage()`.

# %%
with zerocopy.gds.GdsFile("plain.bin", os.O_CREAT | os.O_RDWR) as file:
    file.save_storage(state["weight"].untyped_storage(), offset=0)
    back = torch.empty(width, width)
    file.load_storage(back.untyped_storage(), offset=0)
print("the same values:", torch.equal(back, state["weight"]))

# %% [markdown]
# ## No silent fallback
#
# A program that needs the direct path asks for it, and gets the reason instead of plain reads:

# %%
try:
    zerocopy.gds.load("model.pt", device="cpu", require="direct")
except zerocopy.UnsupportedError as error:
    print(error)
