"""Readers of the rarer kinds: folders of DCP, pickles that may run code, legacy files, TorchScript."""
