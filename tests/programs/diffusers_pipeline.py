"""A diffusion pipeline of two models, saved as .bin files, loaded and run."""

import sys

import torch
import witness  # noqa: F401
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel
from digests import digest

folder = sys.argv[1]

torch.manual_seed(0)
pipeline = DiTPipeline(
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
pipeline.save_pretrained(folder, safe_serialization=False)
loaded = DiTPipeline.from_pretrained(folder, use_safetensors=False)
loaded.set_progress_bar_config(disable=True)
images = loaded(
    class_labels=[3, 5], num_inference_steps=2, generator=torch.Generator().manual_seed(1), output_type="np"
).images
print(digest(loaded.transformer), digest(loaded.vae), digest(torch.from_numpy(images)))
