"""Makes a module's tensors use the memory of a state dict's tensors, where ``load_state_dict`` would make a copy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._torch import modules


class Handover:
    """A hook of each module, which runs right before torch copies into the module, when all keys are final.

    The hook puts the module's own tensor into the state dict. torch then copies that tensor to itself, which reads
    nothing.

    Attributes
    ----------
    keep_dtype : bool
        Whether the module's tensors keep their dtypes and kinds.
    moves : bool
        Whether the module's CPU tensors move to the device of the state dict's tensors.
    """

    def __init__(self, root: torch.nn.Module, *, keep_dtype: bool, moves: bool) -> None:
        self.keep_dtype, self.moves = keep_dtype, moves
        self._slots = dict[torch.Tensor, list[tuple[torch.nn.Module, str]]]()
        for owner in root.modules():
            for name, tensor in modules.own_tensors(owner).items():
                self._slots.setdefault(tensor, []).append((owner, name))
        held = [_torch.untyped_of(tensor).data_ptr() for tensor in self._slots if modules.is_dense(tensor)]
        self._aliased = {address for address, number in Counter(held).items() if number > 1}
        self._targets = dict[int, torch.Tensor]()  # by the address of the memory that they were given
        self._filled = set[torch.Tensor]()

    def __call__(
        self, module: torch.nn.Module, state_dict: dict[str, Any], prefix: str, *others: Any
    ) -> None:
        """Hand over the state dict's entries for the module's own tensors."""
        for name, target in modules.saved_tensors(module).items():
            tensor = state_dict.get(key := prefix + name)
            if isinstance(tensor, torch.Tensor) and modules.is_dense(target):
                try:
                    # An inference tensor could not be trained later.
                    with torch.inference_mode(False), torch.no_grad():
                        state_dict[key] = self._given(target, tensor)
                except Exception as error:  # torch goes on with the next tensor too
                    others[-1].append(
                        f'While copying the parameter named "{key}", whose dimensions in the model are {target.size()} '
                        f"and whose dimensions in the checkpoint are {tensor.size()}, an exception occurred : "
                        f"{error.args}."
                    )

    def _given(self, target: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Return the module's tensor if it has the memory of `tensor` now, else `tensor`, for torch to copy."""
        is_dense = modules.is_dense(tensor)
        if not is_dense and (self.keep_dtype and not target.is_meta):
            return tensor
        given = tensor[0] if not target.dim() and tensor.shape == (1,) else tensor  # before PyTorch 0.4
        if given.shape != target.shape:
            return tensor
        moves = target.is_meta or (self.moves and target.device.type == "cpu")
        changes = target.is_meta or not self.keep_dtype or (moves and given.device != target.device)
        # A copy by torch into memory that was handed over before would change the state dict.
        if changes or target in self._filled:
            dtype = target.dtype if self.keep_dtype and is_dense else given.dtype
            given = given.to(given.device if moves else target.device, dtype)
        elif not (modules.is_alike(target, given) and self._is_alone(target)):
            return tensor
        elif self._targets.setdefault(given.data_ptr(), target) is not target:
            return tensor  # the module has different tensors where the state dict has one
        self._filled.add(target)
        return self._with_memory(target, given)

    def _is_alone(self, target: torch.Tensor) -> bool:
        """Return whether no other tensor of the module, and no other process, shares the memory of `target`."""
        return modules.owns_memory(target) and target.data_ptr() not in self._aliased

    def _with_memory(self, target: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        try:
            target.data = tensor
        except RuntimeError:  # from or to the meta device, or to another kind of tensor
            return self._replaced(target, tensor)
        if target.is_leaf and target.grad is not None:
            target.grad = target.grad.to(tensor.device, tensor.dtype)
        return target

    def _replaced(self, target: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor of the module. The object stays the same if this release of torch supports that."""
        is_parameter = isinstance(target, torch.nn.Parameter)
        new = torch.nn.Parameter(tensor, target.requires_grad) if is_parameter else tensor.detach()
        if modules.is_dense(tensor):
            new.__class__ = type(target)
        vars(new).update(vars(target) | vars(new))
        try:
            torch.utils.swap_tensors(target, new)
        # AttributeError: PyTorch before 2.3. RuntimeError: there is a weak or C++ reference to the tensor.
        except (AttributeError, RuntimeError):
            for slot in self._slots.get(target, ()):
                setattr(*slot, new)
            return new
        return target
