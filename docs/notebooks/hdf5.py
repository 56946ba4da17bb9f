# %% [markdown]
# # Do I need HDF5 to load weights without a copy?
#
# No: `.pt` files are mapped as they are. A well-known notebook converts a BERT model to HDF5, maps
# that file, and wraps the bytes as tensors. This page tells its story again with today's tools, and
# with two corrections.

# %%
import mmap
import os
import time
import zipfile

import h5py
import numpy
import torch
from torch import nn

import zerocopy

# A model of the size of BERT-base, with random weights.
layers, words = (1, 100) if os.environ.get("SMALL") else (12, 30522)
torch.manual_seed(0)
block = nn.TransformerEncoderLayer(768, 12, 3072)
model = nn.ModuleDict(
    {
        "words": nn.Embedding(words, 768),
        "layers": nn.TransformerEncoder(block, layers, enable_nested_tensor=False),
    }
)
torch.save(model.state_dict(), "bert.pt")
print(f"{os.path.getsize('bert.pt') / 1e6:.0f} MB, {len(model.state_dict())} tensors")

# %% [markdown]
# ## First correction: `torch.save` does not compress
#
# A checkpoint is a zip file whose records are stored as they are. Method 0 means "stored".

# %%
print({info.compress_type for info in zipfile.ZipFile("bert.pt").infolist()})

# %% [markdown]
# So the bytes of each tensor lie in the file in one piece, in `.pt` as in HDF5. zerocopy says so:

# %%
print(zerocopy.explain("bert.pt"))

# %% [markdown]
# ## The way by hand
#
# `convert` writes the layout of the notebook: each record becomes a dataset of bytes. h5py says
# where a dataset begins; the rest is a mapping, and views of it.

# %%
zerocopy.convert("bert.pt", "bert.h5")
weight = model["words"].weight
with h5py.File("bert.h5") as file:
    sizes = {name: dataset.size for name, dataset in file["archive/data"].items()}
    name = next(name for name, size in sizes.items() if size == 4 * weight.numel())
    offset = file[f"archive/data/{name}"].id.get_offset()
with open("bert.h5", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
array = numpy.frombuffer(mapped, numpy.float32, weight.numel(), offset).reshape(weight.shape)
print("the same values:", torch.equal(torch.from_numpy(array), weight))

# %% [markdown]
# ## The way in one line
#
# `zerocopy.load` does this for every tensor, for both files. `ready` is the time until the object is
# returned, `consume` until every byte has been read.

# %%


def consume(state):
    for tensor in state.values():
        tensor.sum()


def seconds(load):
    begin = time.perf_counter()
    state = load()
    ready = time.perf_counter() - begin
    consume(state)
    return ready, time.perf_counter() - begin


loaders = {
    "torch.load(bert.pt)": lambda: torch.load("bert.pt"),
    "zerocopy.load(bert.pt)": lambda: zerocopy.load("bert.pt"),
    "zerocopy.load(bert.h5)": lambda: zerocopy.load("bert.h5"),
}
for name, load in loaders.items():
    ready, total = map(min, zip(*(seconds(load) for _ in range(20))))
    print(f"{name:24} ready {ready * 1000:8.2f} ms   consume {total * 1000:7.1f} ms")

# %% [markdown]
# zerocopy copies nothing, so its `consume` is little more than the sums.
#
# ## Second correction: memory
#
# The notebook halves the resident memory that it prints. The kernel counts mapped pages as resident
# in each process that has touched them, though they exist once. So compare private memory:

# %%
state = zerocopy.load("bert.h5")
consume(state)
zerocopy.memory()

# %% [markdown]
# [hdf5.md](../hdf5.md) says which HDF5 files zerocopy reads, and [formats.md](../formats.md) has the
# other formats.
