"""``zerocopy.patch``: programs that call ``torch.load`` gain without being changed.

switch            which functions are replaced, for which threads, and until when
torch_load        one call of torch.load: zerocopy's, or the original's
torch_jit         one call of torch.jit.load
torch_export      one call of torch.export.load
torch_save        torch.save over a file that is mapped
safetensors_load  one call of safetensors.torch.load_file or safe_open
"""

from zerocopy.patching.switch import is_patched, patch, patched, unpatch

__all__ = ["is_patched", "patch", "patched", "unpatch"]
