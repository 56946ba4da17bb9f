"""A pipeline of parts that were loaded before: ``vae=vae``."""

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

sys.path.append(str(Path(__file__).parent.parent))
from digests import digest

place = Path(sys.argv[1])


def make() -> None:
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
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
    )
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae = AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, **blocks)
    DiTPipeline(transformer=transformer, vae=vae, scheduler=DDIMScheduler()).save_pretrained(place)


if not place.exists():
    make()
else:
    vae = AutoencoderKL.from_pretrained(place, subfolder="vae")
    arguments = {"vae": vae, "scheduler": DDIMScheduler.from_pretrained(place, subfolder="scheduler")}
    pipe = DiTPipeline.from_pretrained(place, **arguments)
    print(arguments["vae"] is vae, pipe.vae is vae, pipe.scheduler is arguments["scheduler"])
    print(
        [type(part).__name__ for part in pipe.components.values()], pipe.vae.training, pipe.dtype, pipe.device
    )
    pipe.set_progress_bar_config(disable=True)
    images = pipe(
        class_labels=[3], num_inference_steps=2, generator=torch.Generator().manual_seed(1), output_type="np"
    ).images
    print(digest(pipe.transformer), digest(pipe.vae), digest(torch.from_numpy(images)))
    vae.decoder.conv_in.weight.data.zero_()  # nobody else sees it
