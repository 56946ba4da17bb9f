"""Reads parts of many tensors at once: which bytes of which files, in how many requests, straight into tensors."""
