"""A pipeline of parts that were loaded before: ``vae=vae``."""

import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline

sys.path.append(str(Path(__file__).parent.parent))
from digests import digest
from dit import pipeline

place = Path(sys.argv[1])

if not place.exists():
    pipeline().save_pretrained(place)
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
