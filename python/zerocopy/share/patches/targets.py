"""What ``patch_all`` replaces: the loading functions of known libraries, and the lines of a configuration file.

A place is written ``module::function`` or ``module::Class.method``. The module is the one that defines it: names that
others have for the same function are found by asking.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

#: Names that no release has all of; what is not there is passed over.
KNOWN = """
    torch.serialization::load
    torch.jit._serialization::load
    safetensors.torch::load_file

    transformers.modeling_utils::PreTrainedModel.from_pretrained
    transformers.tokenization_utils_base::PreTrainedTokenizerBase.from_pretrained
    transformers.models.auto.processing_auto::AutoProcessor.from_pretrained
    transformers.processing_utils::ProcessorMixin.from_pretrained
    transformers.pipelines::pipeline

    diffusers.loaders.single_file::FromSingleFileMixin.from_single_file
    diffusers.loaders.single_file_model::FromOriginalModelMixin.from_single_file
    diffusers.loaders.controlnet::FromOriginalControlNetMixin.from_single_file
    diffusers.loaders.controlnet::FromOriginalControlnetMixin.from_single_file
    diffusers.loaders.autoencoder::FromOriginalVAEMixin.from_single_file
    diffusers.loaders.single_file::FromOriginalControlNetMixin.from_single_file
    diffusers.loaders.single_file::FromOriginalControlnetMixin.from_single_file
    diffusers.loaders.single_file::FromOriginalVAEMixin.from_single_file
    diffusers.models.modeling_utils::ModelMixin.from_pretrained
    diffusers.pipelines.pipeline_utils::DiffusionPipeline.from_pretrained
    diffusers.schedulers.scheduling_utils::SchedulerMixin.from_pretrained

    open_clip.factory::create_model_and_transforms
    torchvision.models.vgg::vgg16
    torchvision.models.vgg::vgg19
"""

# Their first argument may be a file object: a copy of it in another process would leave the caller's where it is.
_TAKE_FILES = ("torch.serialization::load", "torch.jit._serialization::load", "safetensors.torch::load_file")

_FORM = re.compile(r"(?P<module>\w+(\.\w+)*)::(?P<name>\w+(\.\w+)*)")


class Target(NamedTuple):
    """Where a function is: a module, and a path of names within it.

    Attributes
    ----------
    module : str
        The module.
    owners : tuple of str
        The classes that it is nested in; empty for a function of the module.
    name : str
        Its own name.
    """

    module: str
    owners: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return f"{self.module}::{'.'.join((*self.owners, self.name))}"

    @property
    def takes_files(self) -> bool:
        """Whether the first argument may be a file object as well as a path."""
        return str(self) in _TAKE_FILES

    @property
    def awaited(self) -> str:
        """The module that has to be imported first.

        All of torch, for its own: what else waits for torch (``zerocopy.patch``) is to lie beneath.
        """
        return "torch" if self.module.startswith("torch.") else self.module


def known_targets() -> list[Target]:
    """Return the places of :data:`KNOWN`."""
    return [_parsed(line) for line in KNOWN.split()]


def targets_in(config: str | os.PathLike[str]) -> list[Target]:
    """Return the places that a file names, one in a line; what follows a ``#`` is a comment.

    Raises
    ------
    ValueError
        For a line that names no place.
    """
    found = []
    for number, line in enumerate(Path(config).read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.append(_parsed(text))
        except ValueError as error:
            raise ValueError(f"{os.fspath(config)}, line {number}: {error}") from None
    return found


def _parsed(text: str) -> Target:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is neither module::function nor module::Class.method")
    *owners, name = match["name"].split(".")
    return Target(match["module"], tuple(owners), name)
