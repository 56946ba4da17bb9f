# %% [markdown]
# # How do processes share a model that does not come from one file?
#
# By a file: `zerocopy.share.load(function, *arguments)` has the function called once on
# this machine. Every process gets the result in milliseconds, and the weights are in memory once.

# %%
import os
import subprocess
import sys
import time

import torch

import zerocopy

width = 256 if os.environ.get("SMALL") else 4096
state = {f"layers.{number}": torch.full((width, width), float(number)) for number in range(4)}
torch.save(state, "model.pt")


def timed(call, *arguments, **options):
    begin = time.perf_counter()
    result = call(*arguments, **options)
    print(f"{(time.perf_counter() - begin) * 1000:8.1f} ms")
    return result


# %% [markdown]
# ## The first call
#
# It is made in this process, and its result is kept. Here the function is
# `torch.load`; a `from_pretrained`, or a function of your own package that converts or quantizes a
# model, is called in the same way.

# %%
loaded = timed(zerocopy.share.load, torch.load, "model.pt")

# %% [markdown]
# ## Later calls, also of other processes
#
# The process maps what is kept.

# %%
loaded = timed(zerocopy.share.load, torch.load, "model.pt")

# %%
program = """
import time, torch, zerocopy
zerocopy.share.status()  # imports
begin = time.perf_counter()
state = zerocopy.share.load(torch.load, "model.pt")
print(f"another process: {(time.perf_counter() - begin) * 1000:.1f} ms,", state["layers.3"].mean().item())
"""
print(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

# %% [markdown]
# The mappings are private: a write stays in the process that wrote.

# %%
loaded["layers.3"].zero_()
print(zerocopy.share.load(torch.load, "model.pt")["layers.3"].mean().item())

# %% [markdown]
# ## A file that changes
#
# Each call asks whether all that the first call has read is still the same. If it is not, the function
# is called again.

# %%
torch.save({name: tensor + 10 for name, tensor in state.items()}, "new.pt")
os.replace("new.pt", "model.pt")
print(zerocopy.share.load(torch.load, "model.pt")["layers.3"].mean().item())

# %% [markdown]
# ## The list of results

# %%
print([(entry.what, entry.written, entry.mapped) for entry in zerocopy.share.status()])
print(zerocopy.share.unload("*"))

# %% [markdown]
# [share.md](../share.md) has the rules: what is shared, which calls are not, and how unchanged
# programs use it (`zerocopy run --share`).
