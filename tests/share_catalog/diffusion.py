"""Models, schedulers and pipelines of diffusers: tiny, made and saved by the catalog itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from share_catalog.case import explicit, patched

NEEDS = ("diffusers",)


def _unet(folder: Path) -> None:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    UNet2DModel(
        sample_size=8, block_out_channels=(32, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).save_pretrained(folder / "unet")  # fmt: skip


def _vae(folder: Path) -> None:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4).save_pretrained(
        folder / "vae"
    )


def _scheduler(folder: Path, steps: int = 100) -> None:
    from diffusers import DDPMScheduler

    DDPMScheduler(num_train_timesteps=steps).save_pretrained(folder / "scheduler")


def _ddpm(folder: Path) -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    _unet(folder)
    unet = UNet2DModel.from_pretrained(folder / "unet")
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10)).save_pretrained(folder / "pipeline")


def _denoise(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.ones(1, 3, 8, 8), 3).sample


@patched(needs=NEEDS, prepare=_unet, is_shared=True, always=True, after=_denoise)
def unet(folder: Path) -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel.from_pretrained(folder / "unet")


@patched(needs=NEEDS, prepare=_unet)
def unet_in_half_precision(folder: Path) -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel.from_pretrained(folder / "unet", torch_dtype=torch.float16)


@patched(needs=NEEDS, prepare=_unet)
def unet_twice_in_one_program(folder: Path) -> Any:
    from diffusers import UNet2DModel

    first, second = (UNet2DModel.from_pretrained(folder / "unet") for _ in range(2))
    with torch.no_grad():
        first.conv_in.weight.zero_()
    return first, second


@patched(needs=NEEDS, prepare=_vae)
def autoencoder(folder: Path) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL.from_pretrained(folder / "vae")


def _schedule(scheduler: Any) -> Any:
    scheduler.set_timesteps(5)
    return scheduler.timesteps, scheduler.alphas_cumprod[:3]


@patched(needs=NEEDS, prepare=_scheduler, is_shared=True, after=_schedule)
def scheduler(folder: Path) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler.from_pretrained(folder / "scheduler")


@patched(needs=NEEDS, prepare=_scheduler, change=lambda folder: _scheduler(folder, 50))
def scheduler_with_its_configuration_rewritten(folder: Path) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler.from_pretrained(folder / "scheduler")


@patched(needs=NEEDS, prepare=_scheduler)
def scheduler_of_another_class(folder: Path) -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler.from_pretrained(folder / "scheduler", clip_sample=False)


def _images(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(1)
    return pipeline(num_inference_steps=2, generator=generator, output_type="np").images


@patched(needs=NEEDS, prepare=_ddpm, after=_images)
def pipeline_of_diffusers(folder: Path) -> Any:
    from diffusers import DDPMPipeline

    return DDPMPipeline.from_pretrained(folder / "pipeline")


@patched(needs=NEEDS, prepare=_ddpm)
def pipeline_with_a_loaded_part(folder: Path) -> Any:
    from diffusers import DDPMPipeline, UNet2DModel

    part = UNet2DModel.from_pretrained(folder / "unet")
    made = DDPMPipeline.from_pretrained(folder / "pipeline", unet=part)
    return made.unet is part, made, part


@patched(needs=NEEDS, prepare=_ddpm)
def pipeline_with_a_changed_part(folder: Path) -> Any:
    from diffusers import DDPMPipeline, UNet2DModel

    part = UNet2DModel.from_pretrained(folder / "unet")
    with torch.no_grad():
        part.conv_in.weight.fill_(0.5)
    made = DDPMPipeline.from_pretrained(folder / "pipeline", unet=part)
    return made.unet is part, made, part


@explicit(needs=NEEDS, prepare=_unet, arguments=lambda folder: (str(folder / "unet"),))
def average_of_a_unet(path: str) -> Any:
    """A model, and its moving average, which begins as a copy."""
    from diffusers import UNet2DModel
    from diffusers.training_utils import EMAModel

    model = UNet2DModel.from_pretrained(path)
    return model, EMAModel(model.parameters()).shadow_params
