"""Plugins for other packages: ``lightning`` and ``vllm``. A package is imported when its plugin is first used."""

from zerocopy import _public_names

__all__, __getattr__, __dir__ = _public_names.on_first_use(__name__, {"": "lightning vllm"})
