"""Targets of ``patch_all``: the loading functions of known libraries, and the lines of a configuration file.

A target is written ``module::function`` or ``module::Class.method``. The module is the one that defines the function.
Other modules of the library that have the same function are patched too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

#: No release has all of these. Functions that are not there are skipped.
KNOWN = """
    torch.serialization::load
    torch.jit._serialization::load
    torch.export::load
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
_TAKE_FILES = (
    "torch.serialization::load",
    "torch.jit._serialization::load",
    "torch.export::load",
    "safetensors.torch::load_file",
)

_FORM = re.compile(r"(?P<module>\w+(\.\w+)*)::(?P<name>\w+(\.\w+)*)")


class Target(NamedTuple):
    """A function to be replaced: a module, and a path of names within it.

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
        """Return whether the first argument may be a file object as well as a path."""
        return str(self) in _TAKE_FILES

    @property
    def awaited(self) -> str:
        """The module that has to be imported first.

        For a module of torch that is torch itself, so that a ``zerocopy.patch`` that waits for torch comes first.
        """
        return "torch" if self.module.startswith("torch.") else self.module


def known_targets() -> list[Target]:
    """Return the targets of :data:`KNOWN`."""
    return [_parsed(line) for line in KNOWN.split()]


def targets_in(config: str | os.PathLike[str]) -> list[Target]:
    """Return the targets that a file names, one in a line. A ``#`` begins a comment.

    Raises
    ------
    ValueError
        For a line that does not name a target.
    """
    found = []
    for number, line in enumerate(Path(config).read_text(encoding="utf-8").splitlines(), 1):
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
        raise ValueError(f"{text!r}: expected module::function or module::Class.method")
    *owners, name = match["name"].split(".")
    return Target(match["module"], tuple(owners), name)
