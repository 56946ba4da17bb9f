"""A diffusion pipeline of two models, saved as .bin files, loaded and run."""

import sys

import torch
import witness  # noqa: F401
from diffusers import DiTPipeline
from digests import digest
from dit import pipeline

folder = sys.argv[1]

pipeline().save_pretrained(folder, safe_serialization=False)
loaded = DiTPipeline.from_pretrained(folder, use_safetensors=False)
loaded.set_progress_bar_config(disable=True)
images = loaded(
    class_labels=[3, 5], num_inference_steps=2, generator=torch.Generator().manual_seed(1), output_type="np"
).images
print(digest(loaded.transformer), digest(loaded.vae), digest(torch.from_numpy(images)))
