"""A small diffusion pipeline of two models."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel


def pipeline() -> DiTPipeline:
    """Return one, always the same."""
    torch.manual_seed(0)
    return DiTPipeline(
        transformer=DiTTransformer2DModel(
            sample_size=8,
            num_layers=2,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=2,
            in_channels=4,
            out_channels=8,
            attention_bias=True,
            activation_fn="gelu-approximate",
            num_embeds_ada_norm=1000,
            norm_type="ada_norm_zero",
            norm_elementwise_affine=False,
        ),
        vae=AutoencoderKL(
            block_out_channels=(16, 32),
            norm_num_groups=8,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        scheduler=DDIMScheduler(),
    )
