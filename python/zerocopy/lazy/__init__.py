"""Tensors that are loaded when they are first used, and checkpoints of these."""
