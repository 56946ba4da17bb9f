"""Copies to a device, in stages through pinned memory."""
