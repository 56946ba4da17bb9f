"""``zerocopy.patch``: programs that call ``torch.load`` gain without being changed.

switching   which attributes are swapped, by whom and for how long
dispatch    one call of torch.load: ours, or the original's
wording     errors, in the words of the running torch
scripts     one call of torch.jit.load
saving      torch.save over a file that is mapped
"""

from zerocopy.patching.switch import is_patched, patch, patched, unpatch

__all__ = ["is_patched", "patch", "patched", "unpatch"]
